"""Offline: our engine in this process, driven as the server drives it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from time import perf_counter
from typing import Any

from sglang.srt.commands.bench.result import BenchCall, Result
from sglang.srt.commands.bench.server_target import read_native
from sglang.srt.commands.bench.target import Target, numbers


class Offline(Target):
    """An engine in this process as a target. ``open_engine`` makes it: a ``sglang.Engine``."""

    def __init__(
        self, open_engine: Callable[[], Any], *, name: str = "engine", ignore_eos: bool = True
    ) -> None:
        self.name = name
        self._open_engine, self._ignore_eos = open_engine, ignore_eos
        self._engine: Any = None

    async def start(self) -> None:
        """Load the model. Raises the errors of loading it."""
        self._engine = await asyncio.to_thread(self._open_engine)

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
