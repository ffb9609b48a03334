"""The order in which requests of lost engines go on, and how many engines one may lose."""

from __future__ import annotations

import asyncio

import pytest
from sglang.srt.engine.client import EngineLost
from sglang.srt.requests.completion import resume_order
from sglang.srt.requests.completion.resume_order import MORE, LostEngines, ResumeOrder
from sglang.srt.requests.completion.serving_engines import EngineLeft

LOST = EngineLost("killed")


@pytest.mark.parametrize("most", [0, 1, 3])
def test_losses_before_an_answer_count_each(most: int) -> None:
    lost = LostEngines(most)
    for _ in range(most):
        lost.count(LOST, began=False)
    lost.count(EngineLeft("it has left"), began=False)
    with pytest.raises(EngineLost, match=rf"in {most + 1} engines .* may continue {most} times"):
        lost.count(LOST, began=False)


def test_losses_behind_an_answer_count_once_up_to_a_limit() -> None:
    lost = LostEngines(1)
    for _ in range(1 + MORE):
        lost.count(LOST, began=True)
    with pytest.raises(EngineLost, match=f"in {2 + MORE} engines"):
        lost.count(LOST, began=True)
    late = LostEngines(1)
    late.count(LOST, began=True)
    with pytest.raises(EngineLost, match="in 2 engines"):
        late.count(LOST, began=False)


def test_without_another_engine_the_first_loss_ends_the_request() -> None:
    with pytest.raises(EngineLost, match="killed"):
        LostEngines(None).count(LOST, began=True)


def played(order: ResumeOrder, suspects: list[int], innocent: list[int]) -> list[tuple[str, int]]:
    """Events of requests that each take a moment until they answer."""
    seen: list[tuple[str, int]] = []

    async def one(request: int, suspect: bool) -> None:
        async with order.turn(request, suspect):
            seen.append(("goes", request))
        await asyncio.sleep(0.002)
        seen.append(("answers", request))
        order.answers(request)

    async def main() -> None:
        await asyncio.gather(
            *(one(request, True) for request in suspects),
            *(one(request, False) for request in innocent),
        )

    asyncio.run(asyncio.wait_for(main(), 30))
    return seen


def test_suspects_go_one_at_a_time_behind_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume_order, "GATHERING", 0.005)
    seen = played(ResumeOrder(), [1, 2, 3], [4, 5])
    assert sorted(seen[:2]) == [("goes", 4), ("goes", 5)]
    assert sorted(seen[2:4]) == [("answers", 4), ("answers", 5)]
    assert seen[4:] == [(what, request) for request in (1, 2, 3) for what in ("goes", "answers")]


def test_a_request_without_an_answer_holds_others_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resume_order, "GATHERING", 0.0)
    monkeypatch.setattr(resume_order, "LONGEST", 0.02)

    async def main() -> None:
        order = ResumeOrder()
        async with order.turn("silent", False):
            pass
        for suspect in "ab":
            async with order.turn(suspect, True):
                pass

    asyncio.run(asyncio.wait_for(main(), 30))
