"""Slots of calls: bounded for each tenant, in order of arrival, none lost by a cancel."""

from __future__ import annotations

import asyncio
import heapq
import random
from typing import Any

import pytest
from sglang.srt.runtime.programs.call_slots import CallSlots


async def hold(slots: CallSlots, tenant: str, arrived: float, order: list[float]) -> None:
    async with slots.slot(tenant, arrived):
        order.append(arrived)
        await asyncio.sleep(0)


def test_earlier_programs_go_first() -> None:
    async def main() -> list[float]:
        slots, order = CallSlots(1), list[float]()
        tasks = [asyncio.ensure_future(hold(slots, "a", at, order)) for at in (5, 3, 9, 1)]
        await asyncio.gather(*tasks)
        assert not slots.running
        assert slots.waiting == 0
        return order

    assert asyncio.run(main()) == [5, 1, 3, 9]


def test_tenants_have_slots_of_their_own() -> None:
    async def main() -> None:
        slots, order = CallSlots(1), list[float]()
        async with slots.slot("a", 0):
            await hold(slots, "b", 1, order)
        assert order == [1]

    asyncio.run(main())


def test_cancels_at_random_lose_no_slot() -> None:
    async def main(seed: int) -> None:
        chance, slots, order = random.Random(seed), CallSlots(2), list[float]()
        tasks = [
            asyncio.ensure_future(hold(slots, chance.choice("ab"), chance.random(), order))
            for _ in range(20)
        ]
        for task in chance.sample(tasks, 10):
            for _ in range(chance.randint(0, 2)):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not slots.running
        assert not slots._lines
        assert not slots._gone
        assert slots.waiting == 0
        assert len(order) >= 10

    for seed in range(200):
        asyncio.run(main(seed))


def test_a_cancel_does_not_walk_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []
    plain = heapq.heapify

    def heapify(line: list[Any]) -> None:
        walked.append(len(line))
        plain(line)

    monkeypatch.setattr(heapq, "heapify", heapify)

    async def main(count: int) -> None:
        slots, order = CallSlots(1), list[float]()
        async with slots.slot("a", 0):
            tasks = [asyncio.ensure_future(hold(slots, "a", at, order)) for at in range(count)]
            await asyncio.sleep(0)
            assert slots.waiting == count
            for task in tasks[: count - 2]:
                task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert slots.waiting == 2
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [count - 2, count - 1]
        assert sum(walked) <= 2 * count

    asyncio.run(main(500))
