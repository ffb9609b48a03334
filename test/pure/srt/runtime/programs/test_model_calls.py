"""Calls of programs: how many prompts are computed ahead at once, and what a full queue does."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.core.call_hints import CallHint
from sglang.srt.engine.client import EngineLost
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import ANYBODY
from sglang.srt.runtime.programs.model_calls import AHEAD_SHARE, CallPlace, ModelCalls
from sglang.srt.runtime.supervisor import EngineAbsent

RUNNING = 16
PLACE = CallPlace(ANYBODY, CallHint(), 0.0, "r")


def body() -> dict[str, str]:
    return {"text": "a"}


def calls() -> Any:
    info = SimpleNamespace(max_running_requests=RUNNING, max_queued_requests=0)
    engines = SimpleNamespace(count=1)
    completion = SimpleNamespace(engines=engines, pending=0)
    queue = SimpleNamespace(waiting=0)
    runtime: Any = SimpleNamespace(info=info, completion=completion, queue=queue)
    return ModelCalls(runtime)


def test_a_share_of_the_requests_is_computed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        found, release = calls(), asyncio.Event()

        async def compute(text: str, place: CallPlace, adapter: str | None) -> bool:
            await release.wait()
            return True

        monkeypatch.setattr(found, "_compute", compute)
        asked = [asyncio.ensure_future(found.compute_ahead("t", PLACE, None)) for _ in range(50)]
        await asyncio.sleep(0)
        release.set()
        assert sum(await asyncio.gather(*asked)) == RUNNING // AHEAD_SHARE
        assert await found.compute_ahead("t", PLACE, None)
        found._runtime.completion.pending = RUNNING
        assert not await found.compute_ahead("t", PLACE, None)

    asyncio.run(main())


def test_a_full_queue_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        found, tries = calls(), 0

        async def answer(*_: Any) -> dict[str, str]:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise RequestError("full", code="queue_full")
            return {"text": "x"}

        async def at_once(seconds: float) -> None:
            assert seconds == 1

        monkeypatch.setattr(found, "_answer", answer)
        monkeypatch.setattr("sglang.srt.runtime.programs.model_calls.asyncio.sleep", at_once)
        assert await found.ask(body, PLACE) == {"text": "x"}
        assert tries == 3
        assert not found.slots.running

    asyncio.run(main())


def test_an_engine_that_is_started_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        found, looks = calls(), 0
        completion = found._runtime.completion
        completion.lost = EngineAbsent("it is being started again")

        async def answer(*_: Any) -> dict[str, str]:
            if completion.lost is not None:
                raise completion.lost.again()
            return {"text": "x"}

        async def soon(_: float) -> None:
            nonlocal looks
            looks += 1
            if looks == 3:
                completion.lost = after

        monkeypatch.setattr(found, "_answer", answer)
        monkeypatch.setattr("asyncio.sleep", soon)
        after: EngineLost | None = None
        assert await found.ask(body, PLACE) == {"text": "x"}
        assert looks == 3
        looks, after = 0, EngineLost("it was started too often")
        completion.lost = EngineAbsent("it is being started again")
        with pytest.raises(EngineLost, match="too often"):
            await found.ask(body, PLACE)

    asyncio.run(main())


def test_a_call_in_line_holds_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        found, made, release = calls(), 0, asyncio.Event()

        def long() -> dict[str, str]:
            nonlocal made
            made += 1
            return {"text": "a"}

        async def answer(*_: Any) -> dict[str, str]:
            await release.wait()
            return {"text": "x"}

        monkeypatch.setattr(found, "_answer", answer)
        asked = [asyncio.ensure_future(found.ask(long, PLACE)) for _ in range(50)]
        await asyncio.sleep(0.01)
        assert made == found.slots.limit == RUNNING // 4
        release.set()
        await asyncio.gather(*asked)
        assert made == 50

    asyncio.run(main())
