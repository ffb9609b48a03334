"""The budget of one rendering of a template: seconds, and characters of all created values."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jinja2.utils import Namespace

SECONDS = 1.0
CHARS = 1 << 25  # most characters of one value
ALL_CHARS = 1 << 27  # most characters of all values that one rendering creates
SHORT = 256  # texts of up to this many characters are not charged
BITS = 4096  # most bits of a number
NODE = 8  # characters charged for a list, a dict or a number inside another value
PART = 16  # characters charged for each text that is cut out of another one
LOOK = 1 << 12  # parts of a value that are counted between two checks of the time
_VIEWS: tuple[type[Iterable[Any]], ...] = (type({}.keys()), type({}.values()), type({}.items()))


class TooMuchError(Exception):
    """The template takes too long or makes too much."""


class TooSlowError(TooMuchError):
    """The template takes too long."""


class _Budget(threading.local):
    """The remaining budget of the rendering in this thread."""

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
    """Charge the characters of a value that is being created. Raises TooMuchError."""
    _budget.chars -= chars
    if chars > CHARS or _budget.chars < 0:
        raise TooMuchError(f"it makes texts of more than {CHARS} characters")


def paid(value: Any) -> Any:
    """Charge the characters of a long text, and return the value. Raises TooMuchError."""
    if isinstance(value, str) and len(value) > SHORT:
        pay(len(value))
    return value


def weigh(value: Any) -> Any:
    """Charge the characters of a value in written form, and return the value. A part that occurs
    twice counts twice. Raises TooMuchError."""
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
        following: list[Any] = []
        for node in level:
            following += _children(node)
            if len(following) > CHARS:
                pay(len(following))
        level = following
    return value


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, dict):
        return [*node, *node.values()]
    if isinstance(node, str):
        pay(len(node))
    return node if isinstance(node, (list, tuple)) else ()


def concat(parts: Iterable[str]) -> str:
    """Join texts and charge their characters. Raises TooMuchError."""
    found, total, most = [], 0, min(CHARS, _budget.chars)
    for part in parts:
        total += len(part)
        if total > most:
            break
        found.append(part)
    pay(total)
    return "".join(found)


def pay_bits(bits: int) -> None:
    """Verify the bits of an integer before it is created. Raises TooMuchError."""
    if bits > BITS:
        raise TooMuchError(f"it makes numbers of more than {BITS} bits")


# -- lists, tuples and dicts that a template makes


class MadeList(list[Any]):
    """A list that stores its own weight (``weight``). So the weight of an outer value is computed
    without visiting the list again. This matters because a part that occurs twice counts twice, and
    a few nested literals can contain one part a huge number of times."""

    _weight = 0


class MadeTuple(tuple[Any, ...]):
    """A tuple that stores its weight, like ``MadeList``."""

    _weight = 0


class MadeDict(dict[Any, Any]):
    """A dict that stores its weight, like ``MadeList``."""

    _weight = 0


_MADE: dict[type, Any] = {list: MadeList, tuple: MadeTuple, dict: MadeDict}


def weight(value: Any) -> int:
    """Return the approximate characters of a value in written form. Raises TooMuchError."""
    total, looks, stack = 0, 0, [value]
    while stack:
        node = stack.pop()
        total += len(node) + 1 if isinstance(node, str) else NODE
        if isinstance(node, (MadeList, MadeTuple, MadeDict)):
            total += node._weight
        elif isinstance(node, (list, tuple)):
            stack += node
        elif isinstance(node, dict):
            stack += [*node, *node.values()]
        looks += 1
        if looks % LOOK == 0:
            tick()
        _verify_weight(total + len(stack))
    return total


def nested(value: Any) -> Any:
    """Return a list, tuple or dict as one that stores its weight; other values unchanged. Raises
    TooMuchError."""
    tick()
    kind = _MADE.get(type(value))
    return value if kind is None else _made(kind, value, weight(value))


def joined(left: Any, right: Any) -> Any:
    """Concatenate two lists or two tuples. Raises TooMuchError."""
    total = weight(left) + weight(right)
    _verify_weight(total)
    made = left + right
    return _made(MadeList if isinstance(made, list) else MadeTuple, made, total)


def repeated(value: Any, count: int) -> Any:
    """Repeat a list or tuple ``count`` times. Raises TooMuchError."""
    total = weight(value) * max(count, 0)
    _verify_weight(total)
    return _made(MadeList if isinstance(value, list) else MadeTuple, value * count, total)


def _made(kind: Any, value: Any, total: int) -> Any:
    made = kind(value)
    made._weight = total
    return made


def _verify_weight(total: int) -> None:
    if total > CHARS:
        raise TooMuchError(f"it makes lists of more than {CHARS} characters")
