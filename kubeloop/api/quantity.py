"""Kubernetes' resource.Quantity: exact, immutable, hashable.

Every amount is held as a whole number of nanos (10⁻⁹), the finest step that Kubernetes knows: parsing rounds what is
finer away from zero, so no later operation ever rounds. Spelling follows apimachinery's pkg/api/resource, including
that a text which looks canonical ("+39", "1.k", "3e0") is kept until something is computed with it."""

import re
from enum import Enum
from functools import lru_cache, total_ordering

NANOS = 10**9
_MAX_INT64 = 2**63 - 1
_MOST_DIGITS = 1000
"""So many digits of a number are read; less than a nano of what is counted depends on the others."""
_LARGEST = (10**300 - 1) * NANOS
"""What is larger counts as so much: a float holds it. Kubernetes has no bound, and tenants may write 1e2000000000."""
_LONGEST_SHARED = 64
"""Characters of a text that is parsed once for all."""


class QuantityError(ValueError):
    """A text that is not a quantity."""


class Format(Enum):
    """The spelling of a quantity; arithmetic keeps the left side's."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_NAMES = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_NAMES = {power: suffix for suffix, power in _BINARY_SUFFIXES.items()}
_SHAPE = re.compile(r"([+-]?)0*+([0-9]*)(?:\.([0-9]*))?([a-zA-Z]{0,2}|[eE][+-]?[0-9]+)")


@total_ordering
class Quantity:
    """An amount and how it is spelled. Equality, order and hash go by the amount alone."""

    __slots__ = ("_text", "format", "nanos")

    def __init__(self, nanos: int, format: Format = Format.DECIMAL_SI, text: str | None = None) -> None:
        self.nanos = nanos
        self.format = format
        self._text = text

    @staticmethod
    def parse(raw: str | int | float) -> "Quantity":
        """The quantity that `raw`, text or a plain JSON number, stands for; QuantityError if it is none."""
        if isinstance(raw, str):
            return _parse(raw) if len(raw) <= _LONGEST_SHARED else _parse.__wrapped__(raw)
        if isinstance(raw, bool) or not isinstance(raw, (int, float)):
            raise QuantityError(f"{raw!r} is not a quantity")
        return Quantity.parse(repr(raw if isinstance(raw, float) else max(-_LARGEST, min(raw, _LARGEST))))

    @staticmethod
    def of(n: int, format: Format = Format.DECIMAL_SI) -> "Quantity":
        return Quantity(n * NANOS, format)

    def is_zero(self) -> bool:
        return self.nanos == 0

    def value(self) -> int:
        """The amount as an integer, rounded up (away from zero, as Go's Value documents)."""
        return _divide_up(self.nanos, NANOS)

    def milli_value(self) -> int:
        return _divide_up(self.nanos, NANOS // 1000)

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nanos - other.nanos, self.format if self.nanos else other.format)

    def __neg__(self) -> "Quantity":
        return Quantity(-self.nanos, self.format)

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: "Quantity") -> bool:
        return self.nanos < other.nanos

    def __gt__(self, other: "Quantity") -> bool:
        return self.nanos > other.nanos  # what max() asks; total_ordering's takes four times as long

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __str__(self) -> str:
        """The canonical form, as apimachinery prints it."""
        if self._text is None:
            self._text = _canonical(self.nanos, self.format)
        return self._text

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"


def parse_wire(raw: str | int | float) -> Quantity:
    """A quantity of an object. White space around it is dropped, as Go's JSON decoding of a Quantity does."""
    return Quantity.parse(raw.strip() if isinstance(raw, str) else raw)


@lru_cache(maxsize=16384)
def _parse(text: str) -> Quantity:
    match = _SHAPE.fullmatch(text) if text else None
    if match is None:
        raise QuantityError(f"{_shorten(text)} is not a quantity")
    sign, whole, fraction, suffix = match.groups(default="")
    digits = (whole or "0") + fraction
    power = _BINARY_SUFFIXES.get(suffix)
    if power is not None:
        # Go's fast path: 1Mi counts as 6 digits, 1Gi as 9, …; 14 may stand before the suffix's own.
        fast = not fraction and len(digits) + 3 * power <= 14
        nanos = min(_shift_up(digits, 9 - len(fraction), 1024**power), _MAX_INT64 * NANOS)
        format = Format.DECIMAL_SI if not fast and 0 < nanos < NANOS else Format.BINARY_SI
        keeps_text = fast and int(digits) & 7 != 0
    else:
        exponent, format = _DECIMAL_SUFFIXES.get(suffix), Format.DECIMAL_SI
        if exponent is None:
            exponent, format = _exponent_of(text, suffix), Format.DECIMAL_EXPONENT
        scale = (exponent - len(fraction) + 2**31) % 2**32 - 2**31  # of 32 bits, as Go's: "2e-4294967296" is two
        nanos = _shift_up(digits, scale + 9)
        # Go's fast path: at most 18 digits and no finer than nano. Only there a text may be kept as it stands.
        fast = len(digits) <= 18 and scale >= -9
        keeps_text = fast and scale % 3 == 0 and digits[0] != "0" and not digits.endswith("000")
    if not (fast or whole or fraction or any(c.isdigit() for c in text.lower().partition("e")[0])):
        # Go's fast path takes "Ki" and "." for zero, its slow path does not.
        raise QuantityError(f"{_shorten(text)} is not a quantity: no digits")
    return Quantity(-nanos if sign == "-" else nanos, format, text if keeps_text else None)


def _exponent_of(text: str, suffix: str) -> int:
    if suffix[0] not in "eE" or not suffix[-1].isdigit():
        raise QuantityError(f"{_shorten(text)} is not a quantity: unknown suffix {suffix!r}")
    digits = suffix[1:].lstrip("+-").lstrip("0")
    exponent = int(digits[:20] or "0") * (-1 if suffix[1] == "-" else 1)
    if not -(2**63) <= exponent < 2**63:
        raise QuantityError(f"{_shorten(text)} is out of range")
    return exponent


def _shift_up(digits: str, exponent: int, factor: int = 1) -> int:
    """Returns the number × factor × 10^exponent, rounded up: a request for some is never rounded to none."""
    others = digits[_MOST_DIGITS:]
    number, exponent = int(digits[:_MOST_DIGITS]) * factor + bool(others.strip("0")), exponent + len(others)
    if abs(exponent) > 2 * _MOST_DIGITS:
        return min(number, 1) * (_LARGEST if exponent > 0 else 1)
    return min(int(number * 10**exponent) if exponent >= 0 else int(-(-number // 10**-exponent)), _LARGEST)


def _divide_up(number: int, divisor: int) -> int:
    return -(-number // divisor) if number >= 0 else number // divisor


def _canonical(nanos: int, format: Format) -> str:
    if nanos == 0:
        return "0"
    if format is Format.BINARY_SI and nanos % NANOS == 0 and abs(nanos) >= 1024 * NANOS:
        number, times = _strip(nanos // NANOS, 1024)
        return f"{number}{_BINARY_NAMES.get(times, '')}"
    number, exponent = _strip(nanos, 10)
    number, exponent = number * 10 ** (exponent % 3), exponent - exponent % 3 - 9
    if format is Format.DECIMAL_EXPONENT:
        return f"{number}e{exponent}" if exponent else str(number)
    # No suffix stands for more than E, and apimachinery then prints none: from 10²¹ on, round numbers lose
    # their zeros ("4837000000E" prints as "4837"). What the API server would store is what is said here.
    return f"{number}{_DECIMAL_NAMES.get(exponent, '')}"


def _strip(number: int, factor: int) -> tuple[int, int]:
    times = 0
    while number % factor == 0:
        number //= factor
        times += 1
    return number, times


def _shorten(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:40]!r}… ({len(text)} characters)"


ZERO = Quantity(0)
