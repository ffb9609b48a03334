"""Service: what every route stands on: the engine's programs, the tokenizer, counts and limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from sglang.srt.config import Config
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.messages import Distribution, Done, Embed, Reply
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.core.segments import Segments
from sglang.srt.http.admin.adapter_routes import Adapters
from sglang.srt.http.connection.tenants import Tenants
from sglang.srt.http.exchange.error_replies import ServerError
from sglang.srt.http.openai.responses.response_store import Store
from sglang.srt.http.telemetry.metrics import Metrics
from sglang.srt.http.telemetry.request_tracing import Tracing
from sglang.srt.program.ask import Ask, verified
from sglang.srt.program.completion import Completion
from sglang.srt.program.media_loading import Expanded
from sglang.srt.program.merge_streams import merge
from sglang.srt.program.output import Finish, Output
from sglang.srt.program.readout import read_all
from sglang.srt.program.reasoning_parser import marks_for
from sglang.srt.program.request_error import RequestError
from sglang.srt.program.sources import Source
from sglang.srt.program.tool_formats import format_for
from sglang.srt.runtime.caller import current
from sglang.srt.runtime.explanations import Entry, Explanations
from sglang.srt.runtime.fair_queue import TurnAborted, Turns
from sglang.srt.runtime.sessions import Sessions
from sglang.srt.runtime.vision_setup import viewer_of, written

MAX_CHOICES = 4096  # completions one HTTP request may ask for
EMBEDDED_NAME = "sglang-tiny"


class Service:
    """Shared by all routes of one app.

    Attributes:
        started: when, to be shown; began: when, to be measured from (time.monotonic()).
        tracing: where spans go, if anywhere.
        draining: no new request is taken.
        open_requests: HTTP requests being answered.
        tool_format: how the model writes calls. thought_marks: what its thoughts stand between.
        tenants: the keys known.
        adapters: those that requests may name.
    """

    def __init__(self, config: Config, completion: Completion) -> None:
        self.config, self.completion = config, completion
        self.tokenizer, self.info = completion.tokenizer, completion.info
        self.model_name = config.server.served_model_name or config.model.model_path
        self.model_name = self.model_name or EMBEDDED_NAME
        template = self.tokenizer.chat_template or ""
        model = config.model.model_path or self.tokenizer.path.name
        self.tool_format = format_for(
            config.server.tool_call_parser, template, model, self.info.architecture
        )
        self.thought_marks = marks_for(config.server.reasoning_parser, template)
        self.started, self.began = int(time.time()), time.monotonic()
        names = {self.model_name, config.model.model_path, self.info.model_path}
        self.adapters = Adapters(completion, config.lora, names)
        self.metrics = Metrics(self.model_name)
        self.tracing: Tracing | None = None
        self.explanations = Explanations()
        self.tenants = Tenants(config)
        self.responses = Store(config.server.response_store_bytes)
        running = self.info.max_running_requests
        self.viewer = viewer_of(config, self.info)
        self.sessions = Sessions(self.abort, self.tokenizer.before)
        self.turns = Turns(running + max(1, running // 4))
        self.draining = False
        self.open_requests = 0

    def restarted(self) -> None:
        """The engine is another one."""
        self.metrics.restarted()
        self.adapters.restore()

    @property
    def body_limit(self) -> int:
        return self.config.server.max_body_bytes

    def run(self, asks: Sequence[Ask]) -> AsyncGenerator[tuple[int, Output], None]:
        """Outputs of all asks as they grow, each with its ask's index, once with ``finish`` set.

        Raises RequestError, ``queue_full`` where they would wait behind too many.
        """
        self.admit(sum(ask.sampling.n for ask in asks))
        explained = self.explanations.begin(asks)
        owned = verified([self._owned(ask) for ask in asks], self.info)
        streams = [self._measured(index, ask, explained) for index, ask in enumerate(owned)]
        return streams[0] if len(streams) == 1 else _each_once(streams)

    async def finish(self, asks: Sequence[Ask]) -> list[list[Output]]:
        """The finished outputs of each ask. Raises as ``run`` does."""
        found: list[dict[int, Output]] = [{} for _ in asks]
        async with aclosing(self.run([ask.unread() for ask in asks])) as items:
            async for index, output in items:
                found[index][output.index] = output
        return [[outputs[i] for i in sorted(outputs)] for outputs in found]

    async def read(self, asks: Sequence[Ask], goal: Embed | Distribution) -> list[Done]:
        """What ``goal``, which draws nothing, finds of each prompt. Raises as ``run`` does."""
        self.admit(len(asks))
        start, metrics = time.monotonic(), self.metrics
        owned = [self._owned(ask) for ask in asks]
        if self.tenants.several:
            found = await self._read_in_turns(owned, goal)
        else:
            found = await read_all(self.completion, owned, goal)
        for done in found:
            current.get().charge(done.stats.prompt_tokens)
            metrics.finished(done.reason)
            metrics.whole.observe(time.monotonic() - start)
            metrics.read(done.stats.prompt_tokens, done.stats.cached_tokens)
        return found

    async def _read_in_turns(self, asks: Sequence[Ask], goal: Embed | Distribution) -> list[Done]:
        """As ``read_all``, each ask in a turn of its own. Raises RequestError and EngineLost."""

        async def one(ask: Ask) -> AsyncGenerator[Done, None]:
            async with self.turns.turn(current.get().tenant, 1, ask.rid):
                for done in await read_all(self.completion, [ask], goal):
                    yield done

        try:
            async with aclosing(merge([one(ask) for ask in asks])) as merged:
                found = {index: done async for index, done in merged}
        except TurnAborted as error:
            raise RequestError("The request was aborted.", "rid") from error
        return [found[index] for index in range(len(asks))]

    def abort(self, rid: str | None = None, owner: str | None = None) -> int:
        """End requests named ``rid`` (None: all) of ``owner`` (None: of all) with reason "abort",
        those that wait for their turn too; return how many."""
        return self.turns.abort(rid, owner) + self.completion.abort(rid, owner)

    async def control(self, op: str, limit: int = 0) -> Reply:
        """The engine's answer to a Control. Raises EngineLost, and ServerError where the engine
        lives but is silent: it answers between two passes only."""
        try:
            return await self.completion.control(op, limit=limit)
        except asyncio.TimeoutError as error:
            message = "The engine is busy and has not answered in time; try again later."
            raise ServerError("engine_lost", message) from error

    def admit(self, count: int) -> None:
        """Raise RequestError where ``count`` more requests are too many, now or ever."""
        if count > MAX_CHOICES:
            raise RequestError(
                f"{count} completions are asked for in one request, by n or as choices to score; "
                f"at most {MAX_CHOICES}.",
                "n",
            )
        pending = self.completion.pending + self.turns.waiting
        limit = self.info.max_running_requests + self.info.max_queued_requests
        if count > limit:
            raise RequestError(
                f"{count} completions are asked for in one request; this server takes {limit} "
                "(--max-running-requests and --max-queued-requests).",
                "n",
            )
        # What a tenant holds must not outgrow what is free (Choudhury and Hahne 1998, dynamic
        # queue thresholds): there is always room for one who holds nothing.
        held = self.turns.held(current.get().tenant) if self.tenants.several else 0
        if pending + held + count > limit:
            raise RequestError(
                f"{pending} requests are running or waiting, {held} of them counted twice as this "
                f"key's own, and {limit} may (--max-queued-requests); try again later."
                if held
                else f"{pending} requests are running or waiting and {limit} may "
                "(--max-queued-requests); try again later.",
                code="queue_full",
            )

    async def prompt(self, value: object, field: str = "prompt") -> Ints:
        """Token ids of a prompt given as text or as ids. Raises RequestError."""
        if isinstance(value, str):
            return await self.completion.encode_prompt(value)
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
        sources: Sequence[Source],
        segments: Segments = (),
        field: str = "messages",
        fits: bool = True,
    ) -> Expanded:
        """The prompt with its images and videos, for each of which it has a placeholder. Raises
        RequestError; with ``fits`` as soon as they are too many for the context."""
        self.verify_seen(sources)
        if self.viewer is None:
            return Expanded(tokens, (), segments)
        room = min(self.info.context_length, self.info.capacity) if fits else None
        seen = await self.viewer.read(sources, room)
        return self.viewer.expand(tokens, seen, segments, field)

    def verify_seen(self, sources: Sequence[Source]) -> None:
        """Raise RequestError where the model cannot see them, whatever they are."""
        if self.viewer is not None:
            self.viewer.verify(sources)
        elif sources:
            raise sources[0].refused(
                f"{self.model_name} ({self.info.architecture}) reads text only; serve a model "
                "with a vision tower.",
                "unsupported",
            )

    @property
    def placeholders(self) -> dict[str, str]:
        """What is written for an image and for a video into a prompt's text."""
        return {} if self.viewer is None else written(self.viewer, self.tokenizer)

    @staticmethod
    def _owned(ask: Ask) -> Ask:
        """The ask as its caller's: nobody else meets its KV or ends it."""
        caller = current.get()
        salt = f"{caller.namespace}{ask.namespace}"
        priority = ask.priority + caller.priority
        return replace(ask, owner=caller.tenant, namespace=salt, priority=priority)

    async def _measured(
        self, index: int, ask: Ask, explained: Entry
    ) -> AsyncGenerator[tuple[int, Output], None]:
        charge, counted = current.get().charge, dict[int, int]()
        with self.metrics.watch(ask) as watch:
            async with aclosing(self._in_turn(ask)) as outputs:
                async for output in outputs:
                    watch.update(output)
                    charge(output.completion_tokens - counted.get(output.index, 0))
                    counted[output.index] = output.completion_tokens
                    if output.finish is not None:
                        explained.note(index, ask, output)
                    yield index, output

    def _in_turn(self, ask: Ask) -> AsyncGenerator[Output, None]:
        """``Completion.stream``, when the caller's turn has come."""
        if self.tenants.several:
            return self._in_a_turn(ask)
        current.get().charge(len(ask.prompt))
        return self.completion.stream(ask)

    async def _in_a_turn(self, ask: Ask) -> AsyncGenerator[Output, None]:
        """The same where there are others that wait for theirs."""
        count, caller = ask.sampling.n, current.get()
        try:
            async with (
                self.turns.turn(caller.tenant, count, ask.rid),
                aclosing(self.completion.stream(ask)) as outputs,
            ):
                caller.charge(len(ask.prompt))
                async for output in outputs:
                    yield output
        except TurnAborted:
            for index in range(count):
                stats = RequestStats(prompt_tokens=len(ask.prompt))
                yield Output(index, stats, finish=Finish("abort"))


async def _each_once(
    streams: Sequence[AsyncGenerator[tuple[int, Output], None]],
) -> AsyncGenerator[tuple[int, Output], None]:
    """All items of all streams, but the later ones of an output that was seen finished: it is one
    object, which may finish while an item that names it waits."""
    ended: set[tuple[int, int]] = set()
    async with aclosing(merge(streams)) as merged:
        async for _, (index, output) in merged:
            if (index, output.index) in ended:
                continue
            if output.finish is not None:
                ended.add((index, output.index))
            yield index, output
