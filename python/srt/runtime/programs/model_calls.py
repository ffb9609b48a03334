"""Model calls of programs: requests of ``/generate`` that the server itself makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from sglang.srt.core.call_hints import CallHint, PrefixHash
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import Caller
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.generate_request import GenerateCall, GenerateRequest
from sglang.srt.runtime.generation import TOKEN_BYTES, answered
from sglang.srt.runtime.programs.call_slots import CallSlots
from sglang.srt.runtime.request_fields import convert, plain
from sglang.srt.runtime.resumed_request import read_call
from sglang.srt.runtime.supervisor import EngineAbsent

AHEAD_PRIORITY = -1_000_000  # a prompt that is computed ahead gives way to calls
AHEAD_SHARE = 4  # 1/4 of the running requests may be prompts that are computed ahead
FULL_RETRIES = 60  # attempts of a call while the queue is full, a second apart
LOOK_SECONDS = 0.1  # period at which a call checks whether the engine was restarted
SHOWN_TOKENS = 8  # tokens between two updates of a text that a step of the program waits for

Show = Callable[[str], None]
Fields = Mapping[str, Any]
Body = Callable[[], dict[str, Any]]  # called once the call has a slot: prompts may be megabytes


@dataclass(frozen=True)
class CallPlace:
    """The caller of a call's program, and facts about its application.

    Attributes:
        arrived: arrival of the application, in seconds of the monotonic clock.
        rid: id of the request, by which it can be aborted.
        prefixes: hashes of the prompt's beginnings, for the router.
    """

    caller: Caller
    hint: CallHint
    arrived: float
    rid: str
    prefixes: tuple[PrefixHash, ...] = ()

    def on(self, request: CompletionRequest) -> CompletionRequest:
        """Return the request with these facts."""
        return replace(
            request, hint=self.hint, arrived=self.arrived, program=self.hint.program,
            prefixes=self.prefixes,
        )  # fmt: skip


class Calls(Protocol):
    """Interface through which runs of programs call the model."""

    async def ask(
        self, body: Body, place: CallPlace, show: Show | None = None, every: int = 0
    ) -> Any:
        """Return the answer of ``/generate`` to ``body()``, as plain data. ``show`` is called with
        the text so far of a single completion every ``every`` tokens. Raises RequestError and
        EngineLost."""
        ...

    async def compute_ahead(self, text: str, place: CallPlace, adapter: str | None) -> bool:
        """Compute a prompt prefix of a later call if the engine has room now. Return whether it was
        computed. Raises no error."""
        ...

    def counts(self) -> dict[str, float]:
        """Gauges and counters of the calls, by name."""
        ...


class ModelCalls:
    """The calls of all programs on one runtime.

    Attributes:
        asked: calls so far. ahead: prompts computed ahead so far. ahead_tokens: their tokens.
    """

    def __init__(self, runtime: EngineRuntime) -> None:
        self._runtime = runtime
        info, engines = runtime.info, runtime.completion.engines.count
        limit = engines * (info.max_running_requests + info.max_queued_requests)
        self.slots = CallSlots(max(limit // 4, 1))
        self.asked = self.ahead = self.ahead_tokens = 0
        self._computing = 0

    async def ask(
        self, body: Body, place: CallPlace, show: Show | None = None, every: int = 0
    ) -> Any:
        async with self.slots.slot(place.caller.tenant, place.arrived):
            request = convert({**body(), "rid": place.rid}, GenerateRequest)
            self.asked += 1
            left = FULL_RETRIES
            while True:
                try:
                    return plain(await self._answer(request, place, show, every))
                except RequestError as error:
                    left -= 1
                    if error.code != "queue_full" or not left:
                        raise
                    await asyncio.sleep(error.retry or 1)
                except EngineAbsent:
                    await self._restarted()

    async def _restarted(self) -> None:
        """Wait until a lost engine has been restarted. Unlike a new request, a call of a running
        program is not refused meanwhile."""
        while isinstance(self._runtime.completion.lost, EngineAbsent):
            await asyncio.sleep(LOOK_SECONDS)

    def counts(self) -> dict[str, float]:
        return {
            "calling": sum(self.slots.running.values()),
            "waiting": self.slots.waiting,
            "calls": self.asked,
            "ahead": self.ahead,
            "ahead_tokens": self.ahead_tokens,
        }

    async def _answer(
        self, body: GenerateRequest, place: CallPlace, show: Show | None, every: int
    ) -> Any:
        call = await read_call(self._runtime, body, place.caller)
        requests = [place.on(request) for request in call.requests]
        call = msgspec.structs.replace(call, requests=requests)
        if show is None or not call.single:
            return await answered(call, await call.finish())
        return await answered(call, [[await _shown(call, show, every)]])

    async def compute_ahead(self, text: str, place: CallPlace, adapter: str | None) -> bool:
        runtime = self._runtime
        room = runtime.info.max_running_requests * runtime.completion.engines.count
        busy = runtime.completion.pending >= room or runtime.queue.waiting
        if busy or self._computing >= max(room // AHEAD_SHARE, 1):
            return False
        self._computing += 1
        try:
            return await self._compute(text, place, adapter)
        finally:
            self._computing -= 1

    async def _compute(self, text: str, place: CallPlace, adapter: str | None) -> bool:
        runtime = self._runtime
        caller = replace(place.caller, charge=None)  # the call itself is charged its whole prompt
        body = {"text": text, "sampling_params": {"max_new_tokens": 0}, "lora_path": adapter,
                "rid": place.rid, "priority": AHEAD_PRIORITY}  # fmt: skip
        try:
            call = await read_call(runtime, convert(body, GenerateRequest), caller)
            [request] = call.requests
            self.ahead += 1
            self.ahead_tokens += len(request.prompt)
            await runtime.finish([place.on(request)], caller)
        except (RequestError, EngineLost):
            return False
        return True


async def _shown(call: GenerateCall, show: Show, every: int) -> Output:
    """Return the finished output of a single completion; call ``show`` with its growing text."""
    call = msgspec.structs.replace(
        call, requests=[replace(call.requests[0], interval=max(every, 1))]
    )
    last, tokens = None, 0
    async with aclosing(call.run()) as items:
        async for _, output in items:
            last = output
            due = max(every, len(output.text) // TOKEN_BYTES)
            if output.finish is None and output.completion_tokens - tokens >= due:
                tokens = output.completion_tokens
                show(output.text)
    if last is None:
        raise EngineLost("the engine ended a request without an answer")
    return last
