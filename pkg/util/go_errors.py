"""Go's own words for what does not parse: texts of Harvester's that are passed on contain them.

Sources: k8s.io/apimachinery/pkg/api/resource (ParseQuantity), encoding/json (scanner).
"""

from __future__ import annotations

import re

_FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_NUMERIC = "unable to parse numeric part of quantity"
_SUFFIX = "unable to parse quantity's suffix"

_PARTS = re.compile(r"[+-]?([0-9]*\.?[0-9]*)([eEinumkKMGTP]*[-+]?[0-9]*)")
_SUFFIXES = re.compile(r"|[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+")


def quantity_error(text: str) -> str:
    """What ParseQuantity says of a text that is no quantity."""
    match = _PARTS.fullmatch(text)
    if not text or match is None:
        return _FORMAT
    return _NUMERIC if _SUFFIXES.fullmatch(match[2]) else _SUFFIX


def json_error(text: str) -> str | None:
    """What encoding/json says of a text that is no JSON; None when its syntax is right."""
    return _Scanner(text).error()


_LITERALS = {"t": "true", "f": "false", "n": "null"}
_SPACE = " \t\r\n"
_END = "unexpected end of JSON input"
_INSIDE = ("in literal", "in numeric", "in exponent", "after decimal", "in string escape", "in \\u")
"""Contexts in which no space may stand."""


class _SyntaxError(Exception):
    pass


class _Scanner:
    """One pass over a document; raises with Go's text at the first character that does not belong."""

    def __init__(self, text: str) -> None:
        # Go works on bytes: what is not ASCII shows as the first byte of its UTF-8 form.
        self._text = text.encode("utf-8", "surrogatepass").decode("latin-1")
        self._at = 0

    def error(self) -> str | None:
        try:
            self._value()
            self._spaces()
            if self._at < len(self._text):
                self._refuse("after top-level value")
        except _SyntaxError as exc:
            return str(exc)
        except RecursionError:
            return "exceeded max depth"
        return None

    def _value(self) -> None:
        self._spaces()
        character = self._next("looking for beginning of value")
        if character == "{":
            self._object()
        elif character == "[":
            self._array()
        elif character == '"':
            self._string()
        elif character in _LITERALS:
            self._literal(_LITERALS[character])
        elif character == "-" or character.isdigit():
            self._number(character)
        else:
            self._at -= 1
            self._refuse("looking for beginning of value")

    def _object(self) -> None:
        self._spaces()
        if self._peek() == "}":
            self._at += 1
            return
        while True:
            self._spaces()
            self._want('"', "looking for beginning of object key string")
            self._string()
            self._spaces()
            self._want(":", "after object key")
            self._value()
            self._spaces()
            if self._want(",}", "after object key:value pair") == "}":
                return

    def _array(self) -> None:
        self._spaces()
        if self._peek() == "]":
            self._at += 1
            return
        while True:
            self._value()
            self._spaces()
            if self._want(",]", "after array element") == "]":
                return

    def _string(self) -> None:
        while True:
            character = self._next("in string literal")
            if character == '"':
                return
            if character == "\\":
                self._escape()
            elif character < " ":
                self._at -= 1
                self._refuse("in string literal")

    def _escape(self) -> None:
        if self._want('bfnrt\\/"u', "in string escape code") == "u":
            for _ in range(4):
                self._want("0123456789abcdefABCDEF", "in \\u hexadecimal character escape")

    def _literal(self, word: str) -> None:
        for expected in word[1:]:
            self._want(expected, f"in literal {word} (expecting {_quoted(expected)})")

    def _number(self, first: str) -> None:
        if first == "-":
            first = self._want("0123456789", "in numeric literal")
        if first != "0":
            self._digits()
        if self._peek() == ".":
            self._at += 1
            self._want("0123456789", "after decimal point in numeric literal")
            self._digits()
        if self._peek() in ("e", "E"):
            self._at += 1
            if self._peek() in ("+", "-"):
                self._at += 1
            self._want("0123456789", "in exponent of numeric literal")
            self._digits()

    def _digits(self) -> None:
        while self._peek().isdigit():
            self._at += 1

    def _spaces(self) -> None:
        while self._peek() and self._peek() in _SPACE:
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self, context: str) -> str:
        character = self._peek()
        if not character:
            raise _SyntaxError(_END)
        self._at += 1
        return character

    def _want(self, allowed: str, context: str) -> str:
        character = self._peek()
        if character and character in allowed:
            self._at += 1
            return character
        return self._refuse(context)

    def _refuse(self, context: str) -> str:
        character = self._peek()
        if not character and not context.startswith(_INSIDE):
            raise _SyntaxError(_END)
        # At the end Go tries a space, and inside a word that is an error of its own.
        raise _SyntaxError(f"invalid character {_quoted(character or ' ')} {context}")


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
