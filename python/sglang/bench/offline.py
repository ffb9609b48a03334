"""Offline: our engine in this process, driven as the server drives it."""

from __future__ import annotations

import asyncio
import inspect
from time import perf_counter
from typing import Any

from sglang.bench.result import BenchCall, Result
from sglang.bench.server_target import read_native
from sglang.bench.target import Target, numbers


class Offline(Target):
    """``settings`` are those of ``sglang.Engine``: ``model_path``, ``disable_radix_cache`` ..."""

    def __init__(
        self, settings: dict[str, Any], *, name: str = "engine", ignore_eos: bool = True
    ) -> None:
        self.name = name
        self._settings, self._ignore_eos = settings, ignore_eos
        self._engine: Any = None

    async def start(self) -> None:
        """Raises what loading the model raises."""
        from sglang.backend.engine.embedded import Engine

        self._engine = await asyncio.to_thread(Engine, **self._settings)

    async def answer(self, call: BenchCall, result: Result) -> None:
        sampling = {
            "max_new_tokens": call.output,
            "temperature": 0,
            "ignore_eos": self._ignore_eos,
        }
        events = self._engine.async_generate(
            input_ids=call.tokens, sampling_params=sampling, stream=True
        )
        if inspect.isawaitable(events):
            events = await events
        async for event in events:
            if read_native(event, result):
                result.arrived(perf_counter())

    async def flush(self) -> None:
        await asyncio.to_thread(self._engine.flush_cache)

    async def counters(self) -> dict[str, float]:
        return numbers(await asyncio.to_thread(self._engine.get_server_info))

    async def close(self) -> None:
        if self._engine is not None:
            await asyncio.to_thread(self._engine.shutdown)
            self._engine = None
