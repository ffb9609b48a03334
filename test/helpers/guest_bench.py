"""GuestBench: a host of guests and an event loop, for tests of the sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sglang.srt.inferlet.host.host_messages import GuestImage, GuestLimits
from sglang.srt.inferlet.host.host_process import GuestEnded, HostProcess, HostRun

T = TypeVar("T")
FACTS = {
    "arguments": ["one"], "instance_id": "1", "version": "0", "models": ["tiny"],
    "traits": {"tiny": []}, "page_size": 1, "vocab_size": 8, "eos": [0], "context_length": 64,
}  # fmt: skip
Call = dict[str, Any]
LIMITS = GuestLimits()


class GuestBench:
    """Everything runs in ``loop``, which turns only inside of ``run``."""

    def __init__(self, lanes: int = 2, memory: int = 2 << 30) -> None:
        self.loop = asyncio.new_event_loop()
        self.host = self.run(self._start(lanes, memory))

    async def _start(self, lanes: int, memory: int) -> HostProcess:
        host = HostProcess(lanes, memory)
        await host.start()
        return host

    def run(self, work: Awaitable[T]) -> T:
        """The value of a coroutine."""
        return self.loop.run_until_complete(asyncio.wait_for(work, 50))

    def close(self) -> None:
        self.run(self.host.stop())
        self.loop.close()

    def launch(self, image: GuestImage, limits: GuestLimits = LIMITS, tenant: str = "") -> HostRun:
        return self.host.launch(image, limits, tenant)

    def ending(self, image: GuestImage, limits: GuestLimits = LIMITS) -> tuple[str, str]:
        """Code and message by which a run ends in its first two turns."""
        run = self.launch(image, limits)

        async def play() -> None:
            await run.turn(None)
            await run.turn("[]")

        try:
            self.run(play())
        except GuestEnded as error:
            return error.code, error.message
        finally:
            self.host.end(run)
        raise AssertionError("the run has not ended")

    async def play(
        self, run: HostRun, answer: Callable[[Call], Any], log: list[str] | None = None
    ) -> Call:
        """Play a program until it exits; its result. ``answer`` gives the value of each call."""
        answers: str | None = None
        try:
            while True:
                text = await run.turn(answers)
                if log is not None:
                    log.append(text)
                calls = json.loads(text)
                if calls and calls[-1]["call"] == "exit":
                    returned = [call["value"] for call in calls if call["call"] == "set_return"]
                    return {"error": calls[-1].get("error", ""), "value": (returned or [None])[-1]}
                values = [(call["id"], answer(call)) for call in calls]
                answers = json.dumps([{"id": i, "value": value} for i, value in values])
        finally:
            self.host.end(run)


def module(path: Path, wat: str) -> GuestImage:
    """A core module from its text, precompiled beside ``path``."""
    from wasmtime import wat2wasm

    path.write_bytes(wat2wasm(wat))
    return compiled(path)


def compiled(path: Path) -> GuestImage:
    """A program from its file."""
    from sglang.srt.inferlet.host.compiling import precompile

    target = path.with_suffix(".cwasm")
    component = precompile(path, target, 30, 4 << 30)
    return GuestImage(str(target), component, "", json.dumps(FACTS), b"seed")


def python(source: str) -> GuestImage:
    """A program in Python; the runner is built where there is none yet."""
    from sglang.srt.inferlet.host.runner_build import runner

    return GuestImage(str(runner()), True, source, json.dumps(FACTS), b"seed")


def javascript(source: str) -> GuestImage:
    """A program in JavaScript. Where its runner can neither be found nor built, the test is
    skipped."""
    return GuestImage(str(javascript_runner()), True, source, json.dumps(FACTS), b"seed")


def javascript_runner() -> Path:
    """The runner of JavaScript, or a test that is skipped with the reason."""
    from sglang.srt.inferlet.host.javascript_build import JAVASCRIPT
    from sglang.srt.inferlet.host.runner_build import ToolchainMissing, runner

    try:
        return runner(recipe=JAVASCRIPT)
    except (ToolchainMissing, RuntimeError) as error:
        pytest.skip(f"there is no runner of JavaScript: {error}")
