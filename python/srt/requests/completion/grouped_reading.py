"""GroupedReading: prompts that are computed without sampling, each on the engine chosen for it."""

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
    """Reads the prompts of one call. Prompts on the same engine form a group.

    Attributes:
        requests: verified requests.
        runs: the Completer's set of requests in flight; readings are added to it, for aborts.
    """

    def __init__(
        self,
        requests: Sequence[CompletionRequest],
        goal: Embed | Distribution,
        runs: set[Any],
    ) -> None:
        self.requests, self.goal, self.runs = requests, goal, runs

    async def read(self, assign: Callable[[CompletionRequest], EngineSuccession]) -> list[Done]:
        """Return the result of each prompt. Raises EngineLost, and RequestError, also if a prompt
        was aborted. In any case all contexts in the engines are closed at the end."""
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
        """Read the prompts of one group and return the results. If the engine is lost, assign
        another engine to the first of ``engines``, which then serves all prompts, and return
        None."""
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
