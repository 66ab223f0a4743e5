"""Go's words. The expectations were recorded from encoding/json of Go 1.26 and apimachinery."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkg.util.go_errors import json_error, quantity_error

END = "unexpected end of JSON input"
JSON = {
    "": END,
    " ": END,
    "{": END,
    '{"a"': END,
    '{"a":': END,
    '{"a":1': END,
    "[1,": END,
    '"abc': END,
    "nope": "invalid character 'o' in literal null (expecting 'u')",
    "tru": "invalid character ' ' in literal true (expecting 'e')",
    "falsy": "invalid character 'y' in literal false (expecting 'e')",
    "hello": "invalid character 'h' looking for beginning of value",
    "{a}": "invalid character 'a' looking for beginning of object key string",
    "{'a':1}": "invalid character '\\'' looking for beginning of object key string",
    '{"a" 1}': "invalid character '1' after object key",
    '{"a":1 "b"}': "invalid character '\"' after object key:value pair",
    '{"a":1,}': "invalid character '}' looking for beginning of object key string",
    "[1 2]": "invalid character '2' after array element",
    "[1,]": "invalid character ']' looking for beginning of value",
    "{} x": "invalid character 'x' after top-level value",
    "01": "invalid character '1' after top-level value",
    '"\\x"': "invalid character 'x' in string escape code",
    '"\\u12g4"': "invalid character 'g' in \\u hexadecimal character escape",
    '"a\nb"': "invalid character '\\n' in string literal",
    '"\x01"': "invalid character '\\x01' in string literal",
    "é": "invalid character 'Ã' looking for beginning of value",
}


@pytest.mark.parametrize(("text", "said"), list(JSON.items()))
def test_what_go_says_of_what_is_no_json(text: str, said: str) -> None:
    assert json_error(text) == said


@pytest.mark.parametrize(
    "text", ["null", "{}", " [ ] ", '{"a":[1,-2.5e+3,true,false,null,"\\u00e9\\n"]}', "0", "-0"]
)
def test_what_is_json_is_not_complained_about(text: str) -> None:
    assert json_error(text) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.booleans())
def test_whatever_python_writes_go_reads(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert json_error(text) is None


@given(VALUES, st.data())
def test_a_document_that_is_cut_off_is_an_error_or_a_document(value: object, data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(0, len(text)))]
    said = json_error(cut)
    try:
        json.loads(cut)
    except ValueError:
        assert said is not None
    else:
        assert said is None


FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
NUMERIC, SUFFIX = "unable to parse numeric part of quantity", "unable to parse quantity's suffix"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", FORMAT),
        ("abc", FORMAT),
        ("1 Gi", FORMAT),
        ("--1", SUFFIX),
        ("1_000", FORMAT),
        ("2e3m", FORMAT),
        ("1gi", FORMAT),
        ("1iG", SUFFIX),
        ("1ee3", SUFFIX),
        ("1mi", SUFFIX),
        ("1KiB", FORMAT),
        (".", NUMERIC),
        ("+", NUMERIC),
    ],
)
def test_what_go_says_of_what_is_no_quantity(text: str, said: str) -> None:
    assert quantity_error(text) == said
