"""SilentLink: an engine that answers nothing, and sessions of programs over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.space_messages import SpaceEvent
from sglang.srt.engine.info import EngineInfo
from sglang.srt.inferlet.controller import Controller
from sglang.srt.inferlet.inferlet_session import InferletSession
from sglang.srt.inferlet.program_limits import TRUSTED, ProgramLimits
from sglang.srt.inferlet.served import RunFollower, Served

INFO = EngineInfo(
    model_path="fake", architecture="Llama", dtype="float32", device="cpu", vocab_size=32,
    context_length=64, capacity=64, page_size=1, max_running_requests=4, max_queued_requests=4,
    eos=(2,),
)  # fmt: skip


class SilentLink:
    """An engine that takes verbs and answers none."""

    def __init__(self) -> None:
        self.listeners: dict[int, Callable[[SpaceEvent], None]] = {}
        self._last = 0

    def new_id(self) -> int:
        self._last += 1
        return self._last

    def send(self, *verbs: Any) -> None: ...

    def listen(self, space: int, listener: Callable[[SpaceEvent], None]) -> None:
        self.listeners[space] = listener

    def unlisten(self, space: int) -> None:
        self.listeners.pop(space, None)


class NoText:
    """A tokenizer of programs that use none."""

    token_bytes = (b"a", b"b")

    def encode(self, text: str, add_special_tokens: bool = True) -> Ints:
        return ints()

    def decode(self, ids: Any, skip_special: bool = False) -> str:
        return ""


def opened(policy: str = "eager", **limits: int) -> tuple[Controller, InferletSession]:
    """A controller over a ``SilentLink``, and a session of it."""
    controller = Controller(Served(SilentLink(), INFO, NoText()), policy)
    session = controller.open([], TRUSTED, ProgramLimits(**limits), RunFollower())
    return controller, session


async def settled() -> None:
    """Give timers 20 ms, and what follows them a hundred turns of the loop: on a busy machine the
    time alone may hold only one."""
    await asyncio.sleep(0.02)
    for _ in range(100):
        await asyncio.sleep(0)
