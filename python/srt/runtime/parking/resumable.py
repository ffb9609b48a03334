"""Resumable generations: contexts that a program parked by name, and requests that resume them.

    parked      the context waits; the answer of the request that parked it holds its handle
    running     a request continues the context
    resumed     that request has its answer, which is kept for its idempotency key
    ended       the deadline has passed, or the context was closed

If a resuming request fails, is aborted, or its client disconnects, the context is parked as before.
A request with an idempotency key continues without its client.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.core.ints import ints
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.held_context import Claim
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError, shown
from sglang.srt.runtime.caller import RequestSlot
from sglang.srt.runtime.parking.parked_store import (
    DEADLINE,
    MOST_DEADLINE,
    ParkedContext,
    ParkedStore,
    ParkFacts,
    ParkingScope,
    Reservation,
    size_of,
)
from sglang.srt.runtime.parking.text_index import ContextText, bytes_of

Outputs: TypeAlias = AsyncGenerator[tuple[int, Output], None]
Run: TypeAlias = Callable[[], Outputs]

MAX_TOOL_NAME = 256
MOST_HANDLES = 1024  # handles of one tenant that are over and still known
ENTRY_BYTES = 64  # approximate size of an answer for each of its tokens and log-probabilities
PARKING_ENDS = ("stop", "length")


class ParkOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """``park`` of a request: the context is kept when the request ends. Null is unset."""

    tool: Annotated[
        str | None,
        Bounds(characters=MAX_TOOL_NAME, empty=True),
        "Name of the tool; calls of one tool are expected to take alike long.",
    ] = None
    expected_seconds: Annotated[
        float | None, Bounds(0, MOST_DEADLINE), "How long the call will take, if that is known."
    ] = None
    deadline_seconds: Annotated[
        float | None,
        Bounds(0, MOST_DEADLINE, open=True),
        f"Seconds after which the context is closed; null: {DEADLINE:.0f}.",
    ] = None

    def claim(self, owner: str) -> Claim:
        deadline = DEADLINE if self.deadline_seconds is None else self.deadline_seconds
        return Claim(self.tool or "", owner, self.expected_seconds or 0.0, deadline)


@dataclass(frozen=True, slots=True)
class PausedGeneration:
    """One generation that spans several requests, with pauses between them.

    Attributes:
        settings: sampling parameters, as the client gave them.
        since: index of the context's token where the generation began.
        arrived: moment of the first request.
        text: the context's text up to the end of the latest prompt.
    """

    settings: Mapping[str, Any]
    since: int
    arrived: float
    text: ContextText

    @property
    def settings_bytes(self) -> int:
        """Approximate size of ``settings``: the bytes of their text."""
        return len(repr(dict(self.settings)).encode())


@dataclass(eq=False, slots=True)
class Handle:
    """The name of a generation that is or was parked.

    Attributes:
        context: the parked context; None once it was resumed or has ended.
        running: a request continues the context. resumed: that request has its answer.
        key, body: that request's idempotency key, and a digest of its other fields.
        work: that request's work, if it has a key.
    """

    name: str
    tenant: str
    generation: PausedGeneration
    context: ParkedContext | None = None
    running: bool = False
    resumed: bool = False
    key: str = ""
    body: bytes = b""
    work: SharedWork | None = None

    @property
    def over(self) -> bool:
        """Whether no request can resume the context, now or later."""
        return self.context is None and not self.running

    def answered(self, key: str, body: bytes) -> SharedWork | None:
        """Return the work of the request that resumed the context with this idempotency key; None
        if no request has resumed it. Raises RequestError ``conflict``."""
        if not self.running and not self.resumed:
            return None
        if not key or key != self.key:
            state = "was resumed already" if self.resumed else "is being resumed"
            raise RequestError(
                f"{shown(self.name)} {state}; only the same idempotency_key gets the same answer.",
                "resume",
                "conflict",
            )
        if body != self.body:
            raise RequestError(
                "idempotency_key was sent before with another body; use a new one.",
                "idempotency_key",
                "conflict",
            )
        if self.work is None:
            raise RequestError(
                "The answer for this idempotency_key is kept no longer (--max-parked-bytes).",
                "idempotency_key",
                "conflict",
            )
        return self.work


class Handles:
    """The handles of all tenants.

    Args:
        most_bytes: most bytes of the answers that are kept for one tenant.

    Attributes:
        table: the bytes of every token id. longest: tokens of the longest possible context.
    """

    def __init__(
        self, store: ParkedStore, most_bytes: int, table: Sequence[bytes], longest: int
    ) -> None:
        self.store, self.table, self.longest = store, table, longest
        self._most_bytes = most_bytes
        self._handles: dict[str, Handle] = {}
        self._past: dict[str, OrderedDict[str, int]] = {}  # by tenant: names, bytes of answers

    def new(self, tenant: str, generation: PausedGeneration) -> Handle:
        handle = Handle(secrets.token_urlsafe(24), tenant, generation)
        self._handles[handle.name] = handle
        return handle

    def find(self, name: str, tenant: str) -> Handle:
        """Return the handle of a name. Raises RequestError ``not_found`` for an unknown name or
        another tenant's, ``expired`` for a context that has ended."""
        handle = self._handles.get(name)
        if handle is None or handle.tenant != tenant:
            raise RequestError(
                f"resume is {shown(name)}; no parked context has this handle.",
                "resume",
                "not_found",
            )
        if handle.over and not handle.resumed:
            raise RequestError(
                f"The context of {shown(name)} waits no longer: its deadline has passed, or it was "
                "closed. Send the whole prompt.",
                "resume",
                "expired",
            )
        return handle

    def leave(self, handle: Handle, size: int = 0) -> None:
        """Keep a handle that is over, so that later requests get its answer or a precise error. Its
        sampling parameters are dropped. ``size``: bytes of the kept answer."""
        handle.generation = replace(handle.generation, settings={})
        past = self._past.setdefault(handle.tenant, OrderedDict())
        past[handle.name] = size
        while len(past) > MOST_HANDLES:
            del self._handles[past.popitem(last=False)[0]]
        held = sum(past.values())
        for name, bytes_held in past.items():
            if held <= self._most_bytes:
                break
            self._handles[name].work, past[name] = None, 0
            held -= bytes_held

    def check(self) -> None:
        """Raise AssertionError if the bookkeeping is inconsistent."""
        past = {name for names in self._past.values() for name in names}
        assert past <= self._handles.keys()
        for name, handle in self._handles.items():
            assert handle.name == name
            assert not (handle.over and handle.generation.settings), f"{name} keeps its settings"
            assert (name in past) == handle.over, f"{name} is {'over' if handle.over else 'alive'}"


class SharedWork:
    """A request that runs to its end even without a client. Any number of clients may follow it.

    Attributes:
        request: the request as it was sent to the engine.
    """

    def __init__(
        self, request: CompletionRequest, outputs: Outputs, slot: RequestSlot | None = None
    ) -> None:
        """Begin to read ``outputs`` in a task. ``slot``: held until the work ends."""
        self.request = request
        self._output: Output | None = None
        self._count = 0  # number of outputs so far
        self._error: Exception | None = None
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._drive(outputs))
        if slot is not None:
            slot.hold()
            self._task.add_done_callback(lambda _: slot.release())

    async def _drive(self, outputs: Outputs) -> None:
        try:
            async with aclosing(outputs) as items:
                async for _, output in items:
                    self._output = output
                    self._count += 1
                    self._tell()
        except (RequestError, EngineLost) as error:
            self._error = error
        except Exception as error:
            self._error = RequestError(
                f"The request failed: {type(error).__name__}.", code="internal_error"
            )
        finally:
            self._tell()

    def _tell(self) -> None:
        """Wake all followers."""
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        news.set_result(None)

    async def follow(self, run: Run | None = None) -> Outputs:
        """Yield the output each time that it has grown, the last time with ``finish`` set. ``run``
        is ignored: the work has begun already. Raises RequestError and EngineLost."""
        seen = 0
        while True:
            if self._count != seen and self._output is not None:
                seen, finished = self._count, self._output.finish is not None
                yield 0, self._output
                if finished:
                    return
            elif isinstance(self._error, RequestError):
                raise self._error.reworded(self._error.message, self._error.param)
            elif isinstance(self._error, EngineLost):
                raise self._error.again()
            elif self._task.done():
                return
            else:
                await asyncio.shield(self._news)

    def cancel(self) -> None:
        """Cancel the work; the server calls this when it ends."""
        self._task.cancel()


@dataclass(eq=False, slots=True)
class ParkedTurn:
    """One request that resumes a handle, or parks its context, or both.

    Attributes:
        generation: the generation at the beginning of the request.
        options: how the context is parked; None if it is not parked.
        resumed: the handle that the request resumes.
        room: reserved room for the context that the request will park.
    """

    handles: Handles
    request: CompletionRequest
    scope: ParkingScope
    generation: PausedGeneration
    options: ParkOptions | None
    resumed: Handle | None = None
    room: Reservation | None = None

    def begin(self) -> None:
        """Reserve room and the handle. The caller must then run the request with ``follow``. Raises
        RequestError ``queue_full``."""
        request = self.request
        if self.options is not None:
            most = len(request.prompt) + request.sampling.max_new_tokens
            most = min(most, self.handles.longest)
            settings_bytes = self.generation.settings_bytes
            self.room = self.handles.store.reserve(self.scope.tenant, most, settings_bytes)
        if self.resumed is not None:
            self.resumed.running = True

    async def follow(self, run: Run) -> Outputs:
        """Yield the items of ``run()``; the last one has the handle of the parked context. Raises
        the errors of ``run``."""
        ended = False
        try:
            async with aclosing(run()) as items:
                async for item in items:
                    output = item[1]
                    if not ended and output.finish is not None:
                        ended = output.finish.reason in PARKING_ENDS
                        if ended:
                            self._end(output)
                    yield item
        finally:
            self._release()
            if not ended:
                self._give_back()

    def _release(self) -> None:
        if self.room is not None:
            self.room.release()

    def _end(self, output: Output) -> None:
        """Mark the resumed handle as answered, and park the context if requested."""
        handle = self.resumed
        if handle is not None:
            if handle.context is not None:
                self.handles.store.drop(handle.context)
            handle.running, handle.resumed, handle.context = False, True, None
            self.handles.leave(handle, 0 if handle.work is None else self._kept_bytes(output))
        if self.options is not None:
            self._release()
            output.resume = self._park(output, self.options)

    def _kept_bytes(self, output: Output) -> int:
        """Approximate size of an answer and its request, which are kept together."""
        request = size_of(len(self.request.prompt), self.generation.settings_bytes)
        return request + _size(output)

    def _park(self, output: Output, options: ParkOptions) -> str:
        handles, tenant = self.handles, self.scope.tenant
        text = self.generation.text.grown(bytes_of(handles.table, output.tokens))
        handle = handles.new(tenant, replace(self.generation, text=text))

        def ended() -> None:
            handle.context = None
            if not handle.running:
                handles.leave(handle)

        if self.resumed is None and self.request.resumed is not None:
            handles.store.supersede(self.request.resumed, tenant)
        facts = ParkFacts(
            self.request.rid, self.generation.arrived, options.claim(tenant),
            self.generation.settings_bytes,
        )  # fmt: skip
        tokens = self.request.prompt + ints(output.tokens)
        handle.context = handles.store.park(self.scope, tokens, text, facts, ended)
        return handle.name

    def _give_back(self) -> None:
        """Park the resumed context as before, because the request has no answer."""
        handle = self.resumed
        if handle is None:
            return
        handle.running, handle.key, handle.body, handle.work = False, "", b"", None
        if handle.context is None:  # expired or closed during the request
            self.handles.leave(handle)
        elif handle.context.held is None or not handle.context.held.open:
            self.handles.store.hold(handle.context)


def _size(output: Output) -> int:
    """Approximate bytes of an answer."""
    entries = len(output.tokens) + len(output.logprobs)
    entries += sum(map(len, output.tops)) + sum(map(len, output.probes))
    return len(output.text) + ENTRY_BYTES * entries
