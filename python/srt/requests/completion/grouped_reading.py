"""Prompts that are read without sampling, each on the engine chosen for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from sglang.srt.core.messages import Distribution, Done, Embed
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.engine_succession import EngineSuccession
from sglang.srt.requests.completion.merge_streams import merge
from sglang.srt.requests.completion.readout import Reading, read_all
from sglang.srt.requests.request_error import RequestError


class GroupedReading:
    """Reads the prompts of one call; those of one engine go together.

    Attributes:
        requests: verified.
        runs: where each reading is entered while it lasts, for aborts.
    """

    def __init__(
        self,
        requests: Sequence[CompletionRequest],
        goal: Embed | Distribution,
        runs: set[Any],
    ) -> None:
        self.requests, self.goal, self.runs = requests, goal, runs

    async def read(self, assign: Callable[[CompletionRequest], EngineSuccession]) -> list[Done]:
        """The result of each prompt. Raises RequestError, also where one was aborted, and
        EngineLost. However it ends, nothing of it is left in an engine."""
        groups: dict[Client, tuple[list[EngineSuccession], list[int]]] = {}
        found: dict[int, Done] = {}
        try:
            for index, request in enumerate(self.requests):
                engine = assign(request)
                engines, indexes = groups.setdefault(engine.client, ([], []))
                engines.append(engine)
                indexes.append(index)
            streams = [self._group(engines, indexes) for engines, indexes in groups.values()]
            if streams:
                async with aclosing(merge(streams)) as merged:
                    async for _, dones in merged:
                        found.update(dones)
        finally:
            for engines, _ in groups.values():
                _close(engines)
        return [found[index] for index in range(len(self.requests))]

    async def _group(
        self, engines: list[EngineSuccession], indexes: Sequence[int]
    ) -> AsyncGenerator[dict[int, Done], None]:
        dones = None
        while dones is None:
            dones = await self._attempt(engines, [self.requests[index] for index in indexes])
        yield dict(zip(indexes, dones))

    async def _attempt(
        self, engines: list[EngineSuccession], requests: Sequence[CompletionRequest]
    ) -> list[Done] | None:
        """The results; None where the engine was lost and another one is to read them. Each prompt
        counts there; the first of ``engines`` stands for all where the engine is lost."""
        engine, client = engines[0], engines[0].client
        readings = [Reading(client, request, self.goal) for request in requests]
        self.runs.update(readings)
        try:
            dones = await read_all(readings)
            for each, done in zip(engines, dones):
                each.note([done])
            return dones
        except EngineLost as lost:
            _close(engines[1:])
            del engines[1:]
            await engine.replace(client, lost)
            if any(reading.aborted for reading in readings):
                raise RequestError("The request was aborted.", "rid") from lost
            return None
        finally:
            for reading in readings:
                reading.close()
            self.runs.difference_update(readings)


def _close(engines: Sequence[EngineSuccession]) -> None:
    for engine in engines:
        engine.close()
