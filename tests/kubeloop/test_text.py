"""Texts of others reach a terminal as text alone."""

import pytest

from kubeloop.logs import printable, quoted

TEXTS = {
    "plain": "plain",
    "é and 界": "é and 界",
    "a\x1b[2Jb": r"a\x1b[2Jb",
    "\x9b31m": r"\x9b31m",
    "one\r\ntwo": r"one\r\ntwo",
    "\u202etxt.exe": r"\u202etxt.exe",
    "\U000e0041": r"\U000e0041",
    "\ud800": r"\ud800",
}


@pytest.mark.parametrize("text", TEXTS)
def test_what_does_not_print_is_escaped(text: str) -> None:
    assert printable(text) == TEXTS[text]


@pytest.mark.parametrize("text", ["it's", 'say "no"', 'it\'s "both"', "back\\slash'", "\x1b]0;title\x07"])
def test_a_quotation_ends_where_it_ends(text: str) -> None:
    result = quoted(text)
    assert result[0] == result[-1]
    assert result.isprintable()
    inner = result[1:-1].replace("\\\\", "").replace(f"\\{result[0]}", "")
    assert result[0] not in inner


def test_a_quotation_is_no_longer_than_it_has_to_be() -> None:
    assert len(quoted("x" * 32_000)) < 510
