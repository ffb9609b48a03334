"""EngineRuntime: admits, runs, measures and ends the requests of a server.

The HTTP server and ``sglang.Engine`` both use it. A client's request is a struct of this package
(``generation``, ``vectors``, ``scoring``, ``classification``); the struct's module runs it on an
``EngineRuntime``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Protocol

from sglang.semantics.tool_calls.tool_formats import format_for
from sglang.srt.config import Config
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.messages import Distribution, Done, Embed, Reply
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.core.segments import Segments
from sglang.srt.engine.client import Client
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import (
    CompletionRequest,
    verified,
    verify_length,
)
from sglang.srt.requests.completion.merge_streams import merge
from sglang.srt.requests.completion.output import Finish, Output
from sglang.srt.requests.completion.readout import ABORTED
from sglang.srt.requests.completion.serving_engines import merged
from sglang.srt.requests.media_input.media_loading import Expanded
from sglang.srt.requests.media_input.sources import MediaSource
from sglang.srt.requests.replies.reasoning_parser import marks_for
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import ANYBODY, Caller
from sglang.srt.runtime.explanations import ExplainedPrompts, Explanations
from sglang.srt.runtime.fair_queue import FairQueue, TurnAborted
from sglang.srt.runtime.loaded_adapters import LoadedAdapters
from sglang.srt.runtime.parking.parked_store import ParkedStore, ParkingScope
from sglang.srt.runtime.parking.resumable import Handles
from sglang.srt.runtime.program_gate import program_turns
from sglang.srt.runtime.sessions import Sessions
from sglang.srt.runtime.tenants import Tenants
from sglang.srt.runtime.vision_setup import viewer_of, written

MAX_CHOICES = 4096  # completions that one request may want
EMBEDDED_NAME = "sglang-tiny"


class Follower(Protocol):
    """Observer of the completions of one prompt."""

    def update(self, output: Output) -> None:
        """Record the state of a completion that has grown or ended."""


class Observer(Protocol):
    """Observer of a runtime's requests, for metrics."""

    def watch(self, request: CompletionRequest) -> AbstractContextManager[Follower]:
        """Follow the completions of ``request``. The block may be left before they end."""

    def computed(self, done: Done, seconds: float) -> None:
        """Record a prompt that was computed without generating, in ``seconds`` since its request
        arrived."""


class EngineRuntime:
    """The requests of a server, or of ``sglang.Engine``.

    Attributes:
        observer: counts requests and tokens; None counts nothing.
        tenants: API keys that share the engine; None: all callers are the same.
        explanations: cache explanations of the last prompts; None: none are kept.
        adapters: LoRA adapters that requests may name.
        tool_format: syntax of the model's tool calls. thought_marks: marks around its reasoning.
        viewer: reads images and videos; None for a model without a vision tower.
        queue: requests of several tenants that wait for their turn.
        programs: turns of programs at the gate; None: there is no gate.
        parked: contexts that wait for a tool. handles: names of parked contexts.
    """

    def __init__(
        self,
        config: Config,
        completion: Completer,
        observer: Observer | None = None,
        tenants: Tenants | None = None,
        explanations: Explanations | None = None,
    ) -> None:
        self.config, self.completion = config, completion
        self.observer, self.tenants = observer, tenants
        self.tokenizer, self.info = completion.tokenizer, completion.info
        self.model_name = model_name_of(config)
        template = self.tokenizer.chat_template or ""
        model = config.model.model_path or self.tokenizer.path.name
        self.tool_format = format_for(
            config.server.tool_call_parser, template, model, self.info.architecture
        )
        self.thought_marks = marks_for(config.server.reasoning_parser, template)
        names = {self.model_name, config.model.model_path, self.info.model_path}
        self.adapters = LoadedAdapters(completion, config.lora, names)
        self.explanations = explanations
        self.viewer = viewer_of(config, self.info)
        self.sessions = Sessions(self.abort, self.tokenizer.before)
        server, table = config.server, self.tokenizer.token_bytes
        self.programs = program_turns(config.programs, self.info)
        self.parked = ParkedStore(
            completion, server.max_parked_per_key, server.max_parked_bytes, watcher=self.programs
        )
        self.handles = Handles(
            self.parked, server.max_parked_bytes, table, self.info.context_length
        )
        running = self.info.max_running_requests * completion.engines.count
        self.queue = FairQueue(running + max(1, running // 4))
        self._ended_by: RequestError | None = None

    @property
    def placeholders(self) -> dict[str, str]:
        """The placeholder texts of an image and of a video in a prompt, by kind."""
        return {} if self.viewer is None else written(self.viewer, self.tokenizer)

    @property
    def _takes_turns(self) -> bool:
        return self.tenants is not None and self.tenants.several

    # -- requests -------------------------------------------------------------------------------

    def run(
        self, requests: Sequence[CompletionRequest], caller: Caller = ANYBODY
    ) -> AsyncGenerator[tuple[int, Output], None]:
        """Yield the outputs of all requests as they grow, each with its request's index. Each
        output comes once with ``finish`` set.

        Raises RequestError; ``queue_full`` if too many requests wait already.
        """
        self.admit(sum(request.sampling.n for request in requests), caller)
        explained = None
        if self.explanations is not None:
            explained = self.explanations.begin(requests, caller)
        owned = verified([_owned(request, caller) for request in requests], self.info)
        streams = [
            self._measured(index, request, caller, explained) for index, request in enumerate(owned)
        ]
        return streams[0] if len(streams) == 1 else _each_once(streams)

    async def finish(
        self, requests: Sequence[CompletionRequest], caller: Caller = ANYBODY
    ) -> list[list[Output]]:
        """Return the finished outputs of each request. Raises the errors of ``run``."""
        found: list[dict[int, Output]] = [{} for _ in requests]
        async with aclosing(self.run([request.unread() for request in requests], caller)) as items:
            async for index, output in items:
                found[index][output.index] = output
        return [[outputs[i] for i in sorted(outputs)] for outputs in found]

    async def read(
        self,
        requests: Sequence[CompletionRequest],
        goal: Embed | Distribution,
        caller: Caller = ANYBODY,
    ) -> list[Done]:
        """Return the result of ``goal``, which samples nothing, for each prompt. Raises the errors
        of ``run``."""
        self.admit(len(requests), caller)
        start = time.monotonic()
        owned = [_owned(request, caller) for request in requests]
        read = self._read_in_turns if self._takes_turns else self.completion.read
        try:
            found = await read(owned, goal)
        except RequestError:
            self._raise_end()
            raise
        for done in found:
            if caller.charge is not None:
                caller.charge(done.stats.prompt_tokens)
            if self.observer is not None:
                self.observer.computed(done, time.monotonic() - start)
        return found

    def abort(self, rid: str | None = None, owner: str | None = None) -> int:
        """End requests named ``rid`` (None: all) of ``owner`` (None: of all) with reason "abort",
        also waiting ones, and close the contexts that they have parked. Return how many."""
        ended = self.queue.abort(rid, owner) + self.completion.abort(rid, owner)
        if self.programs is not None:
            ended += self.programs.abort(rid, owner)
        return ended + self.parked.close(rid, owner)

    def end(self, error: RequestError) -> None:
        """End all requests with ``error``; also all later ones."""
        self._ended_by = error
        self.abort()

    async def unload_adapter(self, name: str) -> None:
        """Close the parked contexts of an adapter, and unload it (``LoadedAdapters.unload``).
        Raises RequestError."""
        if name in self.adapters.known:
            self.parked.close(adapter=name)
        await self.adapters.unload(name)

    def scope(self, caller: Caller, namespace: str, adapter: str) -> ParkingScope:
        """Return the scope of parked contexts for a prompt of this caller, salt and adapter."""
        return ParkingScope(caller.tenant, f"{caller.namespace}{namespace}", adapter)

    async def control(self, op: str, limit: int = 0) -> Reply:
        """Send a Control to all engines and return their merged reply. Raises EngineLost, and
        RequestError ``engine_lost`` if a live engine is silent: it replies only between passes."""
        return merged(await self.control_each(op, limit))

    async def control_each(self, op: str, limit: int = 0) -> Mapping[str, Reply]:
        """Send a Control to all engines and return the reply of each by its name. Raises the errors
        of ``control``."""
        try:
            return await self.completion.control_each(op, limit=limit)
        except asyncio.TimeoutError as error:
            message = "The engine is busy and has not answered in time; try again later."
            raise RequestError(message, code="engine_lost") from error

    def admit(self, count: int, caller: Caller = ANYBODY) -> None:
        """Raise RequestError if ``count`` more completions are too many, now or always. After
        ``end``, raise its error."""
        self._raise_end()
        if count > MAX_CHOICES:
            raise RequestError(
                f"{count} completions are requested at once, by n or as choices to score; "
                f"at most {MAX_CHOICES}.",
                "n",
            )
        limit = self.completion.engines.count * (
            self.info.max_running_requests + self.info.max_queued_requests
        )
        if count > limit:
            raise RequestError(
                f"{count} completions are requested at once; this server takes {limit} "
                "(--max-running-requests and --max-queued-requests of each engine).",
                "n",
            )
        pending = self.completion.pending
        if self.programs is not None:
            pending += self.programs.waiting
        if not self._takes_turns:
            if pending + count > limit:
                raise _full(f"{pending} requests are running or waiting and {limit} may")
            return
        # A tenant may hold as much as is free (Choudhury and Hahne 1998, dynamic queue thresholds),
        # so there is always room for a tenant that holds nothing.
        pending, held = pending + self.queue.waiting, self.queue.held(caller.tenant)
        if pending + held + count > limit:
            own = f", {held} of them counted twice as this key's own," if held else ""
            raise _full(f"{pending} requests are running or waiting{own} and {limit} may")

    def restarted(self, client: Client) -> None:
        """Continue with the engine of ``client``, which replaces a lost one."""
        self.adapters.restore(client)
        if self.programs is not None and self.completion.engines.count == 1:
            self.programs.lost()

    # -- prompts --------------------------------------------------------------------------------

    async def prompt(self, value: object, field: str = "prompt") -> Ints:
        """Return the token ids of a prompt given as text or as ids. Raises RequestError."""
        if isinstance(value, str):
            return await self.completion.encode_prompt(value)
        if isinstance(value, list):
            verify_length(len(value), self.info)  # before the loop over all ids
        if not isinstance(value, list) or not set(map(type, value)) <= {int}:
            raise RequestError(f"{field} must be text or a list of token ids.", field)
        try:
            return ints(value)
        except OverflowError:
            wrong = next(token for token in value if not -(1 << 31) <= token < 1 << 31)
            raise RequestError(
                f"{field} holds token id {wrong}; ids are 0 to {self.info.vocab_size - 1}.", field
            ) from None

    async def see(
        self,
        tokens: Ints,
        sources: Sequence[MediaSource],
        segments: Segments = (),
        field: str = "messages",
        fits: bool = True,
        owner: str = "",
    ) -> Expanded:
        """Read images and videos; return the prompt with each of them at its placeholder. Raises
        RequestError; with ``fits`` also as soon as their tokens exceed the context length.
        ``owner``: the tenant."""
        self.verify_seen(sources)
        if self.viewer is None:
            return Expanded(tokens, (), segments)
        room = min(self.info.context_length, self.info.capacity) if fits else None
        seen = await self.viewer.read(sources, room, owner)
        return self.viewer.expand(tokens, seen, segments, field)

    def verify_seen(self, sources: Sequence[MediaSource]) -> None:
        """Raise RequestError if the model does not take these images or videos."""
        if self.viewer is not None:
            self.viewer.verify(sources)
        elif sources:
            raise sources[0].refused(
                f"{self.model_name} ({self.info.architecture}) reads text only; serve a model "
                "with a vision tower.",
                "unsupported",
            )

    # -- one prompt -----------------------------------------------------------------------------

    async def _measured(
        self,
        index: int,
        request: CompletionRequest,
        caller: Caller,
        explained: ExplainedPrompts | None,
    ) -> AsyncGenerator[tuple[int, Output], None]:
        observer, charge, counted = self.observer, caller.charge, dict[int, int]()
        with nullcontext() if observer is None else observer.watch(request) as follower:
            async with aclosing(self._gated(request, caller)) as outputs:
                async for output in outputs:
                    if follower is not None:
                        follower.update(output)
                    if charge is not None:
                        charge(output.completion_tokens - counted.get(output.index, 0))
                        counted[output.index] = output.completion_tokens
                    if explained is not None and output.finish is not None:
                        explained.note(index, request, output)
                    if output.finish is not None and output.finish.reason == "abort":
                        self._raise_end()
                    yield index, output

    def _raise_end(self) -> None:
        if (error := self._ended_by) is not None:
            raise RequestError(error.message, code=error.code)

    def _gated(self, request: CompletionRequest, caller: Caller) -> AsyncGenerator[Output, None]:
        """Run ``_in_turn`` once the gate admits the request's program."""
        if self.programs is None:
            return self._in_turn(request, caller)
        run = partial(self._in_turn, request, caller)
        return _ending(self.programs.follow(request, run), request)

    def _in_turn(self, request: CompletionRequest, caller: Caller) -> AsyncGenerator[Output, None]:
        """Run ``Completer.run`` once the caller's turn has come."""
        if self._takes_turns:
            return _ending(self._in_a_turn(request, caller), request)
        if caller.charge is not None:
            caller.charge(len(request.prompt))
        self._go_on(request)
        return self.completion.run(request)

    def _go_on(self, request: CompletionRequest) -> None:
        """Record that the request resumes its parked context, if it has one."""
        if request.resumed is not None:
            self.parked.begin(request.resumed, request.owner)

    async def _in_a_turn(
        self, request: CompletionRequest, caller: Caller
    ) -> AsyncGenerator[Output, None]:
        """Wait for the tenant's turn in the queue, then run the request."""
        async with (
            self.queue.turn(caller.tenant, request.sampling.n, request.rid),
            aclosing(self.completion.run(request)) as outputs,
        ):
            if caller.charge is not None:
                caller.charge(len(request.prompt))
            self._go_on(request)
            async for output in outputs:
                yield output

    async def _read_in_turns(
        self, requests: Sequence[CompletionRequest], goal: Embed | Distribution
    ) -> list[Done]:
        """Run ``Completer.read`` for each request in its own turn. Raises RequestError and
        EngineLost."""

        async def one(request: CompletionRequest) -> AsyncGenerator[Done, None]:
            async with self.queue.turn(request.owner, 1, request.rid):
                for done in await self.completion.read([request], goal):
                    yield done

        try:
            async with aclosing(merge([one(request) for request in requests])) as merged:
                found = {index: done async for index, done in merged}
        except TurnAborted as error:
            raise RequestError(ABORTED, "rid") from error
        return [found[index] for index in range(len(requests))]


async def _ending(
    outputs: AsyncGenerator[Output, None], request: CompletionRequest
) -> AsyncGenerator[Output, None]:
    """Yield ``outputs``. If the request was aborted before its turn, yield outputs with the reason
    "abort"."""
    try:
        async with aclosing(outputs):
            async for output in outputs:
                yield output
    except TurnAborted:
        for index in range(request.sampling.n):
            stats = RequestStats(prompt_tokens=len(request.prompt))
            yield Output(index, stats, finish=Finish("abort"))


def model_name_of(config: Config) -> str:
    """Return the name under which the model is served."""
    return config.server.served_model_name or config.model.model_path or EMBEDDED_NAME


def _full(reason: str) -> RequestError:
    return RequestError(f"{reason} (--max-queued-requests); try again later.", code="queue_full")


def _owned(request: CompletionRequest, caller: Caller) -> CompletionRequest:
    """Return the request with the caller's owner, namespace and priority, so that no other caller
    can reuse its KV or end it."""
    if not (caller.tenant or caller.namespace or caller.priority):
        return request
    salt = f"{caller.namespace}{request.namespace}"
    priority = request.priority + caller.priority
    return replace(request, owner=caller.tenant, namespace=salt, priority=priority)


async def _each_once(
    streams: Sequence[AsyncGenerator[tuple[int, Output], None]],
) -> AsyncGenerator[tuple[int, Output], None]:
    """Yield the items of all streams, but none of an output after its end. An output is one object
    for all its items, so it may have ended before an earlier item is read."""
    ended: set[tuple[int, int]] = set()
    async with aclosing(merge(streams)) as merged:
        async for _, (index, output) in merged:
            if (index, output.index) in ended:
                continue
            if output.finish is not None:
                ended.add((index, output.index))
            yield index, output
