"""Primitives: what each costs over a backend that answers at once, so that all of it is ours."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sglang as sgl
from sglang.program import SglFunction

from benchmark.frontend.instant import Instant
from benchmark.harness.rounds import take_turns
from benchmark.harness.tables import Figure, Row

BRANCHES = 8
LIMIT = 100.0  # microseconds a primitive
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Primitive:
    """``append(s)`` uses it once; ``aread`` is what an async program awaits where a plain one's
    ``read`` waits. ``primitives``: how many are in it."""

    name: str
    append: Callable[[Any], Any] = lambda s: None
    read: Callable[[Any, Any], Any] = lambda s, appended: None
    aread: Callable[[Any, Any], Any] | None = None
    primitives: int = 1


def _append(node: Callable[[], Any]) -> Callable[[Any], Any]:
    def append(s: Any) -> None:
        s += node()

    return append


def _fork(s: Any) -> Any:
    forks = s.fork(BRANCHES)
    forks += "\nand " + sgl.gen(f"y{next(_NUMBERS)}", max_tokens=4)  # a join gathers new names
    return forks


PRIMITIVES = (
    Primitive("text", _append(lambda: "text ")),
    Primitive("gen", _append(lambda: sgl.gen("x", max_tokens=4))),
    Primitive("select", _append(lambda: sgl.select("x", ["yes", "no"]))),
    Primitive("role turn", _append(lambda: sgl.user("text"))),
    Primitive("image", _append(lambda: sgl.image(PNG))),
    Primitive("variable read", read=lambda s, _: s["x"], aread=lambda s, _: s.aget("x")),
    Primitive(
        "gen, then read",
        _append(lambda: sgl.gen("x", max_tokens=4)),
        lambda s, _: s["x"],
        lambda s, _: s.aget("x"),
        primitives=2,
    ),
    Primitive(
        f"fork of {BRANCHES} with a gen each, join",
        _fork,
        lambda _, forks: forks.join(),
        lambda _, forks: forks.ajoin(),
        primitives=2 + BRANCHES,
    ),
)


def _program(primitive: Primitive, count: int) -> SglFunction:
    @sgl.function
    def program(s: Any) -> None:
        s["x"] = "value"
        for _ in range(count):
            primitive.read(s, primitive.append(s))

    return program


def _async_program(primitive: Primitive, count: int) -> SglFunction:
    @sgl.function
    async def program(s: Any) -> None:
        s["x"] = "value"
        for _ in range(count):
            appended = primitive.append(s)
            if primitive.aread is not None:
                await primitive.aread(s, appended)

    return program


def measure(loop: asyncio.AbstractEventLoop, rounds: int, count: int) -> list[Row]:
    """Microseconds a use, without those of a run; and a run itself."""

    def seconds(primitive: Primitive, times: int) -> dict[str, list[float]]:
        plain, twin = _program(primitive, times), _async_program(primitive, times)
        return take_turns(
            {
                "plain": lambda: plain.run(backend=backend).text(),
                "async": lambda: loop.run_until_complete(twin.arun(backend=backend)).text(),
            },
            rounds,
        )

    backend = Instant()
    empty = seconds(Primitive("nothing"), 0)
    rows = [Row("run", {name: Figure([1e6 * a for a in empty[name]]) for name in empty})]
    for primitive in PRIMITIVES:
        times = max(count // primitive.primitives, 1)
        spent, limit = seconds(primitive, times), LIMIT * primitive.primitives
        figures = {}
        for name in spent:
            each = [1e6 * (b - a) / times for a, b in zip(empty[name], spent[name], strict=True)]
            figures[name] = Figure(each, limit=limit)
        rows.append(Row(primitive.name, figures))
    return rows
