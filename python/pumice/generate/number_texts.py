"""Numbers as JSON texts. This file finds out which numbers of a schema the compiler (llguidance) keeps exactly, and makes regular
expressions for the numbers between two bounds.

The compiler stores each number as a double, is inexact after the 15th digit, and allows no exponents. For numbers that the compiler would
change, this file makes regular expressions from integers and decimal digits, and never from doubles.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeGuard

from ..common.arguments import shown
from ..errors import GrammarError

Number = int | float

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# Maximum number of digits of a bound. Every double has fewer digits before the point. There is a limit because the size of the regular
# expression grows with the square of the number of digits.
MOST_DIGITS = 320
_WHOLE = 2**53  # at and above this number, not every integer is a double
# Numbers above _PLAIN are written with an exponent, except integers of a schema with a bound above _PLAIN.
_PLAIN = 10**21
_SMALL = Decimal("1e-20")  # smaller positive numbers are written with an exponent
_LARGEST = sys.float_info.max


def is_number(value: Any) -> TypeGuard[int | float]:
    """Returns whether a value is a JSON number. A bool does not count as one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def kept(value: Any) -> bool:
    """Returns whether the compiler's grammar spells a constant as json.dumps() does."""
    if isinstance(value, Mapping):
        return all(map(kept, value.values()))
    if isinstance(value, list):
        return all(map(kept, value))
    if not is_number(value):
        return True
    return abs(value) < _WHOLE and (isinstance(value, int) or (not value.is_integer() and _few_digits(value)))


def bound_kept(value: Any) -> bool:
    """Returns whether the compiler compares with exactly this bound."""
    return not is_number(value) or (abs(value) < _WHOLE and (isinstance(value, int) or _few_digits(value)))


def _few_digits(value: float) -> bool:
    """Returns whether the compiler parses this double exactly. The compiler reads the digits as an integer and divides it by a power of
    ten."""
    text = repr(value)
    return "e" not in text and len(text.lstrip("-").replace(".", "").lstrip("0")) <= 15


def multiple_kept(value: Number) -> bool:
    """Returns whether the compiler parses this multipleOf exactly. The compiler multiplies the number by ten until no digits remain after
    the point."""
    number, places = float(value), 0
    while number != math.floor(number) and places < 20:
        number, places = number * 10, places + 1
    return number < 2**32 and Decimal(int(number)).scaleb(-places) == Decimal(repr(value))


# ---- numbers between two bounds --------------------------------------------------------------------------------


def between(here: Mapping[str, Any], integer: bool, path: str) -> str:
    """Returns a regular expression for all numbers within a schema's bounds. Each matching text parses to an int or a finite double within
    the bounds."""
    low, low_open = _tighter(here, "minimum", "exclusiveMinimum", max, path)
    high, high_open = _tighter(here, "maximum", "exclusiveMaximum", min, path)
    lowest = None if low is None else math.floor(low) + 1 if low_open else math.ceil(low)
    highest = None if high is None else math.ceil(high) - 1 if high_open else math.floor(high)
    texts = [] if lowest is not None and highest is not None and lowest > highest else [_integers(lowest, highest, integer)]
    if not integer:
        texts += _fractions(*_doubles(low, low_open, high, high_open))
    texts = [text for text in texts if text]
    if not texts:
        raise GrammarError(
            f"{path}: no number is within the bounds {', '.join(f'{word} {shown(here[word])}' for word in BOUNDS if word in here)}"
        )
    return _any_of(texts)


def _tighter(here: Mapping[str, Any], word: str, open_word: str, tighter: Any, path: str) -> tuple[Number | None, bool]:
    """Returns the tighter of the two bounds that a schema can have on one side (such as minimum and exclusiveMinimum), and whether this
    bound itself is excluded."""
    given, apart = here.get(word), here.get(open_word)
    for name, value in ((word, given), (open_word, apart)):
        if isinstance(value, bool) and name == open_word:  # in JSON Schema draft 4, a boolean here is a flag that excludes the other bound
            continue
        if value is None and name not in here:
            continue
        if not is_number(value):
            raise GrammarError(f"{path}/{name}: {shown(value)} is no number")
        if abs(value) >= 10**MOST_DIGITS:
            raise GrammarError(f"{path}/{name}: a bound has at most {MOST_DIGITS} digits")
    if isinstance(apart, bool):
        return given, apart and given is not None
    if given is None or apart is None:
        return (given, False) if apart is None else (apart, True)
    return (apart, True) if tighter(given, apart) == apart else (given, False)


def _doubles(low: Number | None, low_open: bool, high: Number | None, high_open: bool) -> tuple[Decimal, Decimal]:
    """Returns the smallest and the largest double within the bounds, or (1, 0) if there is none. A decimal text between these two doubles
    parses to a double between them."""

    def inside(bound: Number, open_: bool, towards: float) -> float:
        near = min(max(bound, -_LARGEST), _LARGEST)
        double = float(near)
        beyond = double < bound if towards > 0 else double > bound
        if abs(bound) <= _LARGEST and (beyond or (open_ and double == bound)):
            double = math.nextafter(double, towards)
        return double

    first = -_LARGEST if low is None else inside(low, low_open, math.inf)
    last = _LARGEST if high is None else inside(high, high_open, -math.inf)
    if (
        (low is not None and low > _LARGEST)
        or (high is not None and high < -_LARGEST)
        or not (math.isfinite(first) and math.isfinite(last))
    ):
        return Decimal(1), Decimal(0)
    return Decimal(repr(first)), Decimal(repr(last))


def _integers(low: int | None, high: int | None, all_: bool) -> str:
    """Returns an expression for integers from low to high. all_: whether integers of any size are included if a bound is missing. If it is
    False, the expressions with exponents cover integers beyond 10^21."""
    if not all_:
        low = -_PLAIN if low is None else low
        high = _PLAIN if high is None else high
    if low is None and high is None:
        return "-?(0|[1-9][0-9]*)"
    texts = []
    if low is None or low < 0:
        texts.append(f"-{_naturals(1 if high is None or high >= 0 else -high, None if low is None else -low)}")
    if (low is None or low <= 0) and (high is None or high >= 0):
        texts.append("-?0" if low is None or low < 0 else "0")
    if high is None or high > 0:
        texts.append(_naturals(1 if low is None or low <= 0 else low, high))
    return _any_of(texts)


def _naturals(low: int, high: int | None) -> str:
    """Returns an expression for integers from low (0 or more) to high."""
    if high is None:
        size = len(str(low))
        return _any_of([_naturals(low, 10**size - 1), f"[1-9][0-9]{{{size},}}"])
    found = []
    while low <= high:
        last = min(high, 10 ** len(str(low)) - 1)
        found += _same_length(str(low), str(last))
        low = last + 1
    return _any_of(found)


def _same_length(low: str, high: str) -> list[str]:
    at = _common(low, high)
    if at == len(low):
        return [low]
    head, rest = low[:at], len(low) - at - 1
    if not low[at:].strip("0") and not high[at:].strip("9"):
        return [head + _digits(rest + 1)]
    found = [f"{head}{low[at]}{tail}" for tail in _at_least(low[at + 1 :])]
    if middle := _digit(int(low[at]) + 1, int(high[at]) - 1):
        found.append(head + middle + _digits(rest))
    return found + [f"{head}{high[at]}{tail}" for tail in _at_most(high[at + 1 :])]


def _at_least(digits: str) -> list[str]:
    """Returns expressions for the numbers that have as many digits as `digits` and are not smaller than `digits`."""
    if not digits.strip("0"):
        return [_digits(len(digits))]
    found = [digits]
    for i, c in enumerate(digits):
        if middle := _digit(int(c) + 1, 9):
            found.append(digits[:i] + middle + _digits(len(digits) - i - 1))
    return found


def _at_most(digits: str) -> list[str]:
    if not digits.strip("9"):
        return [_digits(len(digits))]
    found = [digits]
    for i, c in enumerate(digits):
        if middle := _digit(0, int(c) - 1):
            found.append(digits[:i] + middle + _digits(len(digits) - i - 1))
    return found


# ---- numbers with a point or an exponent -----------------------------------------------------------------------


def _fractions(low: Decimal, high: Decimal) -> list[str]:
    found = []
    if low <= 0 <= high:
        found.append(f"{'-?' if low < 0 else ''}0\\.0{{1,20}}" if high >= 0 else "")
    if low < 0:
        found += [f"-{_any_of(texts)}" for texts in (_positive(max(-high, Decimal(0)), -low),) if texts]
    if high > 0:
        found += [_any_of(texts) for texts in (_positive(max(low, Decimal(0)), high),) if texts]
    return found


def _positive(low: Decimal, high: Decimal) -> list[str]:
    """Returns expressions for numbers above 0, from low to high."""
    low = low or Decimal("5e-324")
    if low > high:
        return []
    found = []
    first, last = max(low, _SMALL), min(high, Decimal(_PLAIN))
    if first <= last:
        found += _plain(first, last)
    return found + _scientific(low, high)


def _plain(low: Decimal, high: Decimal) -> list[str]:
    """Returns expressions for numbers such as 12.5, with digits after the point."""
    (whole, rest), (last, last_rest) = _split(low), _split(high)
    if whole == last:
        return [f"{whole}\\.{tail}" for tail in _rest_between(rest, last_rest)]
    found = [f"{whole}\\.{tail}" for tail in _rest_at_least(rest)]
    if whole + 1 < last:
        found.append(f"{_naturals(whole + 1, last - 1)}\\.[0-9]+")
    return found + [f"{last}\\.{tail}" for tail in _rest_at_most(last_rest)]


def _split(number: Decimal) -> tuple[int, str]:
    whole, _, rest = format(number, "f").partition(".")
    return int(whole), rest.rstrip("0")


def _scientific(low: Decimal, high: Decimal) -> list[str]:
    """Returns expressions for numbers such as 1.25e3, with one nonzero digit before the point."""
    first, last = low.adjusted(), high.adjusted()
    smallest, largest = (_mantissa(number) for number in (low, high))
    if first == last:
        return [f"{_any_of(_mantissas(smallest, largest))}{_exponents(first, first)}"]
    found = []
    if smallest != (1, ""):
        found.append(f"{_any_of(_mantissas(smallest, (9, '')))}{_exponents(first, first)}")
        first += 1
    if first < last:
        found.append(f"[1-9](\\.[0-9]+)?{_exponents(first, last - 1)}")
    return [*found, f"{_any_of(_mantissas((1, ''), largest))}{_exponents(last, last)}"]


def _mantissa(number: Decimal) -> tuple[int, str]:
    first, *rest = number.normalize().as_tuple().digits
    return first, "".join(map(str, rest))


def _mantissas(low: tuple[int, str], high: tuple[int, str]) -> list[str]:
    """Returns expressions for mantissas from low to high. If high is 9 without further digits, they reach up to 9.99..."""
    (first, rest), (last, last_rest) = low, high
    whole = high == (9, "")
    if first == last and not whole:
        return [f"{first}\\.{tail}" for tail in _rest_between(rest, last_rest)] + ([str(first)] if not rest else [])
    if not rest and whole:
        return [f"{_digit(first, 9)}(\\.[0-9]+)?"]
    found = [f"{first}\\.{tail}" for tail in _rest_at_least(rest)] + ([str(first)] if not rest else [])
    if middle := _digit(first + 1, 9 if whole else last - 1):
        found.append(f"{middle}(\\.[0-9]+)?")
    return found if whole else [*found, str(last), *(f"{last}\\.{tail}" for tail in _rest_at_most(last_rest))]


def _exponents(low: int, high: int) -> str:
    found = []
    if low < 0:
        found.append(f"-0?{_naturals(max(1, -high), -low)}")
    if high >= 0:
        found.append(f"\\+?0?{_naturals(max(0, low), high)}")
    return f"[eE]{_any_of(found)}"


def _rest_at_least(digits: str) -> list[str]:
    """Returns expressions for the digits after the point (at least one) of numbers that are not less than 0.digits."""
    if not digits:
        return ["[0-9]+"]
    found = [f"{digits}[0-9]*"]
    for i, c in enumerate(digits):
        if middle := _digit(int(c) + 1, 9):
            found.append(f"{digits[:i]}{middle}[0-9]*")
    return found


def _rest_at_most(digits: str) -> list[str]:
    if not digits:
        return ["0+"]
    found = [f"{digits}0*", *(digits[:i] for i in range(1, len(digits)))]
    for i, c in enumerate(digits):
        if middle := _digit(0, int(c) - 1):
            found.append(f"{digits[:i]}{middle}[0-9]*")
    return found


def _rest_between(low: str, high: str) -> list[str]:
    found = [f"{low}0*" if low else "0+"]
    if low == high:
        return found
    size = max(len(low), len(high))
    first, last = low.ljust(size, "0"), high.ljust(size, "0")
    at = _common(first, last)
    head = first[:at]
    tail = first[at + 1 :].rstrip("0")
    found += [f"{head}{first[at]}{more}" for more in _rest_at_least(tail)]
    if middle := _digit(int(first[at]) + 1, int(last[at]) - 1):
        found.append(f"{head}{middle}[0-9]*")
    tail = last[at + 1 :].rstrip("0")
    return [*found, f"{head}{last[at]}", *(f"{head}{last[at]}{more}" for more in _rest_at_most(tail))]


# ---- pieces of expressions -------------------------------------------------------------------------------------


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def _digit(low: int, high: int) -> str:
    return "" if low > high else str(low) if low == high else f"[{low}-{high}]"


def _digits(count: int) -> str:
    return "" if count == 0 else "[0-9]" if count == 1 else f"[0-9]{{{count}}}"


def _any_of(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"({'|'.join(texts)})"
