"""Work: what one rendering of a template may still do, in time and in characters."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jinja2.utils import Namespace

SECONDS = 1.0
CHARS = 1 << 25  # of one value
ALL_CHARS = 1 << 27  # of all values that one rendering makes
SHORT = 256  # characters of a value that costs nothing
BITS = 4096  # of a number
_VIEWS: tuple[type[Iterable[Any]], ...] = (type({}.keys()), type({}.values()), type({}.items()))


class TooMuchError(Exception):
    """The template takes too long or makes too much."""


class TooSlowError(TooMuchError):
    """The template takes too long."""


class _Work(threading.local):
    """What the rendering in this thread may still do."""

    deadline, chars, seconds = float("inf"), ALL_CHARS, SECONDS


_work = _Work()


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Around one rendering."""
    _work.deadline, _work.chars = time.monotonic() + seconds, ALL_CHARS
    _work.seconds = seconds
    try:
        yield
    finally:
        _work.deadline = float("inf")


def tick() -> None:
    if time.monotonic() > _work.deadline:
        raise TooSlowError(f"it takes more than {_work.seconds:g} s")


def pay(chars: int) -> None:
    """For a value of so many characters, before or right after it is made."""
    _work.chars -= chars
    if chars > CHARS or _work.chars < 0:
        raise TooMuchError(f"it makes texts of more than {CHARS} characters")


def paid(value: Any) -> Any:
    """The value; texts that are not short are paid for."""
    if isinstance(value, str) and len(value) > SHORT:
        pay(len(value))
    return value


def weigh(value: Any) -> Any:
    """The value, if its text is of bearable size: of one that holds another twice it is twice as
    long."""
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
    found, total, most = [], 0, min(CHARS, _work.chars)
    for part in parts:
        total += len(part)
        if total > most:
            break
        found.append(part)
    pay(total)
    return "".join(found)


def pay_bits(bits: int) -> None:
    """For a whole number of so many bits, before it is made."""
    if bits > BITS:
        raise TooMuchError(f"it makes numbers of more than {BITS} bits")
