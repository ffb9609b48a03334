"""A generation names neither request nor context, so it can go on in another request."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.desk import Desk, generate
from sglang.srt.core.context import Context
from sglang.srt.core.messages import Close
from sglang.srt.core.request import Generation, Request, RequestSpec

PROMPT = [3, 1, 4, 1, 5]


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 1.0, "seed": 7}, {"frequency_penalty": 1.0}, {"top": 2, "interval": 32}],
    ids=str,
)
def test_generation_moves_to_another_request(params: dict[str, Any]) -> None:
    goal = generate(12, stop=("never",), **params)
    plain = Desk()
    whole = plain.advance(plain.open(PROMPT), goal)
    plain.run()
    desk = Desk()
    context = desk.open(PROMPT)
    first = desk.advance(context, goal)
    for _ in range(5):
        desk.step()
    generation = desk.engine.running[first].generation
    assert len(generation.tokens) == 5
    desk.send(Close(context))
    generated = list(generation.tokens)
    second = desk.advance(desk.open([*PROMPT, *generated]), goal)
    later = desk.engine.waiting[second]
    later.spec = RequestSpec(goal, len(PROMPT))
    later.generation = generation
    desk.run()
    assert generated + desk.tokens(second) == plain.tokens(whole)
    assert desk.done(second).reason == plain.done(whole).reason
    desk.finish()


def reached(value: object, seen: set[int]) -> Iterator[object]:
    """All objects that ``value`` refers to through its slots and lists."""
    if id(value) in seen or isinstance(value, (str, int, float, array, type(None))):
        return
    seen.add(id(value))
    yield value
    if isinstance(value, list):
        for item in value:
            yield from reached(item, seen)
    for name in getattr(type(value), "__slots__", ()):
        yield from reached(getattr(value, name), seen)


def test_generation_refers_to_no_request() -> None:
    desk = Desk()
    request = desk.advance(desk.open(PROMPT), generate(6, stop=("never",), top=1, interval=32))
    for _ in range(3):
        desk.step()
    found = list(reached(desk.engine.running[request].generation, set()))
    assert any(isinstance(one, Generation) for one in found)
    assert not any(isinstance(one, (Request, Context)) for one in found)


def test_requests_have_at_most_ten_fields() -> None:
    from sglang.srt.core import request

    classes = [one for one in vars(request).values() if hasattr(one, "__dataclass_fields__")]
    own = [one for one in classes if one.__module__ == request.__name__]
    assert len(own) >= 5
    assert max(len(one.__dataclass_fields__) for one in own) <= 10
