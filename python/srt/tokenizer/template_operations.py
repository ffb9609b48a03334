"""Operators, methods and filters of templates that charge the budget before they compute.

Each of these operations can create a large value from small ones (``template_budget``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Environment
from jinja2.exceptions import SecurityError
from jinja2.filters import do_round, make_attrgetter
from jinja2.runtime import Undefined
from jinja2.utils import pass_environment
from sglang.srt.tokenizer.template_budget import (
    PART,
    TooMuchError,
    concat,
    joined,
    pay,
    pay_bits,
    repeated,
    tick,
    weigh,
)

SPACES = " \t\n\r\f\v\x1c\x1d\x1e\x1f"
WIDE_SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))
LINE_ENDS = "\n\r\f\v\x1c\x1d\x1e\x85\u2028\u2029"
PLACES = 100  # most digits of a rounded number, and most characters of an indent
_WIDE = re.compile(  # a format with a large or variable width
    r"%(\([^)]*\))?[-+ #0]*(\d*\.)?(\d{3,}|\*)|\{[^{}:]*:[^{}]*?(\d{3,}|\{)"
)

# -- operators ------------------------------------------------------------------------------------


def _times(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        pay_bits(left.bit_length() + right.bit_length())
    for one, count in ((left, right), (right, left)):
        if isinstance(one, (str, list, tuple)) and isinstance(count, int):
            pay(len(one) * max(count, 0))
            if not isinstance(one, str):
                return repeated(one, count)
    return left * right


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        pay_bits(left.bit_length() * abs(right))
    return left**right


def _plus(left: Any, right: Any) -> Any:
    if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
        pay(len(left) + len(right))
        if not isinstance(left, str) and not isinstance(right, str):
            return joined(left, right)
    return left + right


def _percent(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        check_width(left)
        weigh(right)
    return left % right


OPERATORS = {"*": _times, "**": _power, "+": _plus, "%": _percent}


# -- methods of texts -----------------------------------------------------------------------------


def check_width(pattern: str, *args: Any, **kwargs: Any) -> None:
    if _WIDE.search(pattern):
        raise TooMuchError("it formats with a width of more than two digits, or one that varies")
    weigh([*args, *kwargs.values()])


def _pad(text: str, width: int = 0, *rest: Any) -> None:
    pay(width)


def _tabs(text: str, tabsize: int = 8) -> None:
    pay(len(text) + text.count("\t") * max(tabsize, 0))


def _replaced(text: str, old: str, new: str, count: int | None = None) -> None:
    pay(len(text) + text.count(str(old)) * len(str(new)))


def _joined(text: str, parts: Iterable[Any]) -> None:
    if isinstance(parts, (str, list, tuple, dict)):
        pay(sum(map(len, filter(_is_text, parts))) + len(text) * len(parts))
    elif text:
        raise SecurityError("join needs a list")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _parts(text: str, sep: str | None = None, *rest: Any, **more: Any) -> None:
    ends = [sep] if sep else SPACES if text.isascii() else WIDE_SPACES
    pay(PART * sum(map(text.count, ends)))


def _lines(text: str, *rest: Any, **more: Any) -> None:
    pay(PART * sum(map(text.count, LINE_ENDS)))


def _never(text: str, *args: Any, **kwargs: Any) -> None:
    raise SecurityError("translate is not open to templates")


METHODS: dict[str, Callable[..., None]] = {
    "center": _pad, "ljust": _pad, "rjust": _pad, "zfill": _pad, "expandtabs": _tabs,
    "replace": _replaced, "join": _joined, "translate": _never, "split": _parts, "rsplit": _parts,
    "splitlines": _lines,
}  # fmt: skip


# -- filters --------------------------------------------------------------------------------------


@pass_environment
def _to_json(
    environment: Any,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON in the form that chat templates expect of ``tojson``: without HTML escapes."""
    if isinstance(value, Undefined):
        raise TypeError("an undefined value has no JSON")
    if environment.nests:
        weigh(value)
    if indent is None:
        return json.dumps(value, ensure_ascii=ensure_ascii, separators=separators,
                          sort_keys=sort_keys)  # fmt: skip
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=min(int(indent), PLACES), separators=separators,
        sort_keys=sort_keys,
    )  # fmt: skip
    return concat(encoder.iterencode(value))


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(weigh(text))
    _replaced(text, old, new)
    return str(text.replace(str(old), str(new), -1 if count is None else count))


@pass_environment
def _join(
    environment: Environment, value: Iterable[Any], d: str = "", attribute: Any = None
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return concat(_between(value, str(d)))


def _between(values: Iterable[Any], text: str) -> Iterator[str]:
    for i, value in enumerate(values):
        tick()
        if i and text:
            yield text
        yield str(weigh(value))


def _indent(text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    text = str(weigh(text))
    space = width if isinstance(width, str) else " " * min(int(width), PLACES)
    pay(len(text) + text.count("\n") * len(space))
    lines = text.split("\n")
    told = [space + line if line or blank else line for line in lines[1:]]
    return "\n".join([space + lines[0] if first else lines[0], *told])


def _string(value: Any) -> str:
    return str(weigh(value))


def _format(pattern: str, *args: Any, **kwargs: Any) -> str:
    check_width(str(pattern), *args, **kwargs)
    return str(pattern) % (kwargs or args)


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    places = max(-PLACES, min(precision, PLACES))
    found: float = do_round(value, places, method)  # type: ignore[arg-type]
    return found


@pass_environment
def _sum(
    environment: Environment, values: Iterable[Any], attribute: Any = None, start: float = 0
) -> float:
    if attribute is not None:
        values = map(make_attrgetter(environment, attribute), values)
    if not isinstance(start, (int, float)):
        raise SecurityError("sum adds numbers")
    total: float = sum(values, start)
    return total


FILTERS: Mapping[str, Callable[..., Any]] = {
    "tojson": _to_json, "replace": _replace, "join": _join, "indent": _indent, "string": _string,
    "format": _format, "round": _round, "sum": _sum,
}  # fmt: skip


# -- tests ----------------------------------------------------------------------------------------


def _divided(value: Any, by: Any) -> bool:
    if isinstance(value, str):
        raise TypeError("a text is not divisible")
    return bool(value % by == 0)


TESTS: Mapping[str, Callable[..., Any]] = {
    "divisibleby": _divided, "even": lambda value: _divided(value, 2),
    "odd": lambda value: not _divided(value, 2),
}  # fmt: skip
