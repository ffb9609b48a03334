"""The budget of one rendering of a template: seconds, and characters of the values it makes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jinja2.utils import Namespace

SECONDS = 1.0
CHARS = 1 << 25  # characters of one value
ALL_CHARS = 1 << 27  # characters of all values that one rendering makes
SHORT = 256  # characters of a value that costs nothing
BITS = 4096  # bits of a number
_VIEWS: tuple[type[Iterable[Any]], ...] = (type({}.keys()), type({}.values()), type({}.items()))


class TooMuchError(Exception):
    """The template takes too long or makes too much."""


class TooSlowError(TooMuchError):
    """The template takes too long."""


class _Budget(threading.local):
    """The rest of the budget of the rendering in this thread."""

    deadline, chars, seconds = float("inf"), ALL_CHARS, SECONDS


_budget = _Budget()


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Set the budget for the rendering inside the block."""
    _budget.deadline, _budget.chars = time.monotonic() + seconds, ALL_CHARS
    _budget.seconds = seconds
    try:
        yield
    finally:
        _budget.deadline = float("inf")


def tick() -> None:
    if time.monotonic() > _budget.deadline:
        raise TooSlowError(f"it takes more than {_budget.seconds:g} s")


def pay(chars: int) -> None:
    """Charge a value's characters, before or right after it is made. Raises TooMuchError."""
    _budget.chars -= chars
    if chars > CHARS or _budget.chars < 0:
        raise TooMuchError(f"it makes texts of more than {CHARS} characters")


def paid(value: Any) -> Any:
    """Charge the characters of a long text. Returns the value."""
    if isinstance(value, str) and len(value) > SHORT:
        pay(len(value))
    return value


def weigh(value: Any) -> Any:
    """Charge the characters of a value written out, in which a part held twice counts twice.
    Returns the value. Raises TooMuchError."""
    if isinstance(value, _VIEWS):
        weigh(list(value))
    if isinstance(value, Namespace):
        raise TooMuchError("it writes a namespace out")
    if not isinstance(value, (dict, list, tuple)):
        return value
    level: list[Any] = [value]
    while level:
        pay(len(level))
        tick()
        level = [child for node in level for child in _children(node)]
    return value


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, dict):
        return [*node, *node.values()]
    if isinstance(node, str):
        pay(len(node))
    return node if isinstance(node, (list, tuple)) else ()


def concat(parts: Iterable[str]) -> str:
    """The texts as one."""
    found, total, most = [], 0, min(CHARS, _budget.chars)
    for part in parts:
        total += len(part)
        if total > most:
            break
        found.append(part)
    pay(total)
    return "".join(found)


def pay_bits(bits: int) -> None:
    """Check the bits of an integer before it is made. Raises TooMuchError."""
    if bits > BITS:
        raise TooMuchError(f"it makes numbers of more than {BITS} bits")
