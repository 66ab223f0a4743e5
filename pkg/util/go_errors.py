"""Go's own words for what does not parse: texts of Harvester's that are passed on contain them.

Sources: k8s.io/apimachinery/pkg/api/resource (ParseQuantity), encoding/json (scanner).
"""

from __future__ import annotations

import json
import re

_FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_NUMERIC = "unable to parse numeric part of quantity"
_SUFFIX = "unable to parse quantity's suffix"

_PARTS = re.compile(r"[+-]?([0-9]*\.?[0-9]*)([eEinumkKMGTP]*[-+]?[0-9]*)")
_SUFFIXES = re.compile(r"|[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+")


def quantity_error(text: str) -> str:
    """What ParseQuantity says of a text that is not a quantity."""
    match = _PARTS.fullmatch(text)
    if not text or match is None:
        return _FORMAT
    return _NUMERIC if _SUFFIXES.fullmatch(match[2]) else _SUFFIX


def json_error(text: str) -> str | None:
    """What encoding/json says of a text that is no JSON; None when its syntax is right.

    Python's parser finds the place. Only a number that ends too early is described in other words than Go's.
    """
    # Go works on bytes: what is not ASCII shows as the first byte of its UTF-8 form.
    text = text.encode("utf-8", "surrogatepass").decode("latin-1")

    def refuse(constant: str) -> object:
        raise json.JSONDecodeError(_VALUE, text, text.index(constant))

    try:
        json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        return _described(text, error)
    except RecursionError:
        return "exceeded max depth"
    return None


_VALUE = "Expecting value"
_CONTEXTS = {
    _VALUE: "looking for beginning of value",
    "Expecting property name": "looking for beginning of object key string",
    "Expecting ':'": "after object key",
    "Extra data": "after top-level value",
    "Invalid control": "in string literal",
    "Invalid \\escape": "in string escape code",
    "Invalid \\u": "in \\u hexadecimal character escape",
}
"""What Python says, as far as it matters, and Go."""
_LITERALS = {word[0]: word for word in ("true", "false", "null")}
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]*)?")


def _described(text: str, error: json.JSONDecodeError) -> str:
    at = error.pos
    if error.msg.startswith("Invalid \\") and (escape := _ESCAPE.match(text, text.rindex("\\", 0, at + 1))):
        at = escape.end()
    if error.msg == _VALUE and (word := _LITERALS.get(text[at : at + 1])):
        right = next(n for n in range(len(word)) if text[at + n : at + n + 1] != word[n])
        wrong = text[at + right : at + right + 1] or " "
        return f"invalid character {_quoted(wrong)} in literal {word} (expecting {_quoted(word[right])})"
    if at >= len(text) or error.msg.startswith("Unterminated"):
        return "unexpected end of JSON input"
    context = next((go for said, go in _CONTEXTS.items() if error.msg.startswith(said)), _between(text[:at]))
    return f"invalid character {_quoted(text[at])} {context}"


def _between(before: str) -> str:
    """Where a comma is missing."""
    brackets = re.sub(r"[^][{}]", "", _STRING.sub("", before))
    while brackets != (inner := re.sub(r"\[\]|\{\}", "", brackets)):
        brackets = inner
    return "after array element" if brackets.endswith("[") else "after object key:value pair"


def _quoted(character: str) -> str:
    """encoding/json's quoteChar."""
    if character == "'":
        return "'\\''"
    if character == '"':
        return "'\"'"
    if character in "\t\r\n\\":
        return "'" + {"\t": "\\t", "\r": "\\r", "\n": "\\n", "\\": "\\\\"}[character] + "'"
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return f"'\\x{code:02x}'"
    return f"'{character}'"
