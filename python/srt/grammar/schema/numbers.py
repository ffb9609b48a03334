"""Numbers between bounds, as terminals of llguidance's Lark.

Written without exponents and with few enough digits that no binary fraction stands for two of
them: what is greater than a bound as text is greater as a number too.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from sglang.srt.grammar.schema.quoted import NEVER

DIGITS = 20  # beyond those of a bound, of an integer without an upper one
ANY_INTEGER = f"/-?(0|[1-9][0-9]{{0,{DIGITS - 1}}})/"
ANY_NUMBER = (
    f"/-?(0|[1-9][0-9]{{0,{DIGITS - 1}}})(\\.[0-9]{{1,{DIGITS}}})?([eE][+-]?[0-9]{{1,2}})?/"
)
ANY_FRACTION = r"/(0|[1-9][0-9]*)\.[0-9]*[1-9]/"
EXACT = "/[0-9.]{1,16}/"  # fifteen digits and a point
MOST_DIGITS = 300

Bound = tuple[Decimal, bool]  # the number, and whether it is left out itself


def exact(value: int | float) -> Decimal:
    """The number as JSON writes it."""
    return Decimal(value) if isinstance(value, int) else Decimal(repr(value))


def number(low: Bound | None, high: Bound | None, integer: bool, fraction: bool) -> str | None:
    """Terminal for the numbers between two bounds; None where there is none.

    Args:
        integer: without a fractional part.
        fraction: with one that is not zero.
    """
    if low is None and high is None:
        if fraction:
            return f'("-"? ({ANY_FRACTION} & {EXACT}))'
        return ANY_INTEGER if integer else ANY_NUMBER
    parts = []
    if low is None or low[0] < 0:
        above = (-low[0], low[1]) if low is not None else None
        below = (-high[0], high[1]) if high is not None and high[0] <= 0 else (Decimal(0), True)
        found = _size(below, above, integer, fraction)
        if found:
            parts.append(f'("-" {found})')
    if high is None or high[0] >= 0:
        least = (Decimal(0), False) if low is None or low[0] < 0 else low
        found = _size(least, high, integer, fraction)
        if found:
            parts.append(found)
    return " | ".join(parts) if parts else None


def _size(low: Bound, high: Bound | None, integer: bool, fraction: bool) -> str | None:
    """Numbers without a sign: at least ``low``, which is not negative, at most ``high``."""
    if high is not None and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))):
        return None
    if integer:
        first = int(low[0].to_integral_value("ROUND_CEILING"))
        first += first == low[0] and low[1]
        last = None
        if high is not None:
            last = int(high[0].to_integral_value("ROUND_FLOOR"))
            last -= last == high[0] and high[1]
            if last < first:
                return None
        return _conjunction([_whole_from(first), _whole_to(last)])
    below = _to(high) if high is not None else f"/[0-9]{{1,{DIGITS}}}(\\.[0-9]+)?/"
    parts = [_from(low), below, EXACT]
    if fraction:
        parts.append(r"/[0-9]+\.[0-9]*[1-9]/")
    return _conjunction(parts)


def _conjunction(parts: Sequence[str | None]) -> str:
    return f"({' & '.join(part for part in parts if part)})"


def _whole_from(first: int) -> str:
    """Digits of an integer that is at least ``first``."""
    text = str(first)
    if first == 0:
        return f"/0|[1-9][0-9]{{0,{DIGITS - 1}}}/"
    longer = f"[1-9][0-9]{{{len(text)},{len(text) + DIGITS}}}"
    return f"/{'|'.join([*_digits(text, True), text, longer])}/"


def _whole_to(last: int | None) -> str | None:
    if last is None:
        return None
    text = str(last)
    shorter = ["0"] + ([f"[1-9][0-9]{{0,{len(text) - 2}}}"] if len(text) > 1 else [])
    return f"/{'|'.join([*_digits(text, False), text, *shorter])}/"


def _digits(text: str, greater: bool) -> list[str]:
    """Patterns of as many digits, without a leading zero, that are greater (less) than ``text``."""
    found = []
    for at, digit in enumerate(text):
        low = int(digit) + 1 if greater else (1 if at == 0 and len(text) > 1 else 0)
        high = 9 if greater else int(digit) - 1
        if low <= high:
            rest = len(text) - at - 1
            found.append(f"{text[:at]}[{low}-{high}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return found


def _parts(value: Decimal) -> tuple[int, str]:
    """The integer part, and the digits of the fraction without trailing zeros."""
    whole, _, fraction = f"{value:f}".partition(".")
    return int(whole), fraction.rstrip("0")


def _from(low: Bound) -> str:
    """Decimals, without a sign, that are at least (more than) ``low``."""
    whole, fraction = _parts(low[0])
    more = _whole_from(whole + 1)[1:-1]
    if not fraction:
        same = r"\.[0-9]*[1-9][0-9]*" if low[1] else r"(\.[0-9]+)?"
    else:
        options = [f"{fraction[:at]}[{int(d) + 1}-9][0-9]*" for at, d in enumerate(fraction)
                   if d != "9"]  # fmt: skip
        options.append(f"{fraction}[0-9]*" + ("[1-9][0-9]*" if low[1] else ""))
        same = rf"\.({'|'.join(options)})"
    return rf"/({more})(\.[0-9]+)?|{whole}{same}/"


def _to(high: Bound) -> str:
    """Decimals, without a sign, that are at most (less than) ``high``."""
    whole, fraction = _parts(high[0])
    options = []
    if whole > 0:
        less = _whole_to(whole - 1)
        assert less is not None
        options.append(rf"({less[1:-1]})(\.[0-9]+)?")
    if fraction:
        digits = [f"{fraction[:at]}[0-{int(d) - 1}][0-9]*" for at, d in enumerate(fraction)
                  if d != "0"]  # fmt: skip
        digits += [f"{fraction[:at]}0*" for at in range(1, len(fraction))]
        digits += [] if high[1] else [f"{fraction}0*"]
        options.append(rf"{whole}(\.({'|'.join(digits)}))?")
    elif not high[1]:
        options.append(rf"{whole}(\.0+)?")
    return f"/{'|'.join(options)}/" if options else f"/{NEVER}/"
