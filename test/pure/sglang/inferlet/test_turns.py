"""Turns: a program's tasks, its calls, and the answers that they wait for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sglang.inferlet.dist import Dist
from sglang.inferlet.handle_numbers import HANDLES, HandleNumbers
from sglang.inferlet.samplers import Greedy, Nucleus
from sglang.inferlet.turns import CallError, Turns


def test_turn_makes_the_calls_of_all_tasks() -> None:
    turns = Turns()

    async def one(name: str) -> Any:
        return await turns.ask("tokenize", text=name)

    async def main() -> Any:
        turns.emit("send", message="hi")
        return await asyncio.gather(one("a"), one("b"))

    first = turns.start(main)
    assert [(call["call"], call["id"]) for call in first] == [
        ("send", 1), ("tokenize", 2), ("tokenize", 3),
    ]  # fmt: skip
    assert turns.turn([{"id": 3, "value": [3]}]) == []
    assert turns.turn([{"id": 2, "value": [2]}]) == [
        {"call": "set_return", "id": 4, "value": [[2], [3]]},
        {"call": "exit", "id": 5},
    ]
    assert turns.turn([]) == []


def test_refused_call_raises_where_it_is_awaited() -> None:
    turns = Turns()

    async def main() -> Any:
        try:
            await turns.ask("now")
        except CallError as error:
            return error.code, str(error)

    turns.start(main)
    made = turns.turn([{"id": 1, "error": {"code": "denied", "message": "why"}}])
    assert made[0]["value"] == ("denied", "why")


def test_exception_is_the_exits_error() -> None:
    turns = Turns()

    async def main() -> Any:
        raise KeyError("x")

    [exit] = turns.start(main)
    assert "KeyError: 'x'" in exit["error"]


def test_sleeps_are_calls_and_end_in_order() -> None:
    turns, woken = Turns(), list[str]()

    async def nap(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append(name)

    async def main() -> None:
        await asyncio.gather(nap("long", 0.5), nap("short", 0.25), nap("zero", 0))

    [first] = turns.start(main)
    assert (first["call"], first["seconds"], woken) == ("sleep", 0.25, ["zero"])
    [second] = turns.turn([{"id": first["id"], "value": None}])
    assert (second["seconds"], woken) == (0.25, ["zero", "short"])
    [exit] = turns.turn([{"id": second["id"], "value": None}])
    assert (exit["call"], woken) == ("exit", ["zero", "short", "long"])


def test_turns_run_inside_of_a_running_loop() -> None:
    async def outer() -> list[Any]:
        turns = Turns()

        async def main() -> str:
            await asyncio.sleep(0)
            return "done"

        made = turns.start(main)
        assert asyncio.get_running_loop() is not turns
        return made

    assert asyncio.run(outer())[0]["value"] == "done"


def test_same_answers_give_the_same_calls() -> None:
    def run() -> list[Any]:
        turns = Turns()

        async def main() -> Any:
            jobs = [asyncio.ensure_future(turns.ask("now")) for _ in range(3)]
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            turns.emit("send", message=str(len(done)))
            await asyncio.sleep(0.1)
            return [await job for job in jobs]

        made = [turns.start(main)]
        for number in (2, 1, 3):
            made.append(turns.turn([{"id": number, "value": number}]))
        return [*made, turns.turn([{"id": 5, "value": None}])]

    assert run() == run()


def test_handles_are_used_again_last() -> None:
    numbers = HandleNumbers()
    first = numbers.take(3)
    numbers.give(first)
    assert numbers.take(2) == [3, 4]
    assert numbers.run(5) == 5
    numbers.take(HANDLES - 10)
    assert numbers.take(3) == [0, 1, 2]
    with pytest.raises(ValueError, match=str(HANDLES)):
        numbers.take(1)


def test_samplers_take_from_the_distribution() -> None:
    import math
    from array import array

    probs = [0.5, 0.3, 0.15, 0.05]
    answer = {
        "ids": array("i", [7, 3, 9, 1]).tobytes(),
        "logprobs": array("f", map(math.log, probs)).tobytes(),
        "probe": b"",
    }
    dist = Dist(answer)
    assert Greedy()(dist) == dist.max_index() == 7
    assert {Nucleus(top_k=1, seed=0)(dist) for _ in range(20)} == {7}
    assert {Nucleus(top_p=0.6, seed=i)(dist) for i in range(40)} == {7, 3}
    found = [Nucleus(seed=i)(dist) for i in range(2000)]
    for token, probability in zip([7, 3, 9, 1], probs):
        assert abs(found.count(token) / 2000 - probability) < 0.05
