"""Completer: completes prompts by the verbs of the engine, for HTTP and ``sglang.Engine``.

    n = 1    Open, Advance(Generate)
    n > 1    Open, Advance(Fill), then n - 1 ForkContext and one Advance(Generate) each
    max 0    Open, Advance(Fill), or Advance(Score) where log-probabilities are wanted
    whole    Open, Advance(Fill), then for every choice ForkContext, Append and Advance(Score)

A request that goes on with a parked context has Append in place of Open, where the engine holds it.

A stream that is closed or cancelled, at whatever moment, closes its contexts in the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import cached_property
from typing import Any

from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.messages import (
    Advance,
    Append,
    Close,
    Distribution,
    Done,
    Embed,
    Event,
    Failed,
    Fill,
    ForkContext,
    Generate,
    PromptChunk,
    Reply,
    Score,
    Tokens,
    Verb,
)
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.engine.client import Client, EngineLost, Inbox
from sglang.srt.engine.info import EngineInfo
from sglang.srt.requests.completion.completion_request import (
    CompletionRequest,
    Logprobs,
    nth,
    verify_length,
)
from sglang.srt.requests.completion.encoder import MOST, Encoder, bytes_of
from sglang.srt.requests.completion.merge_streams import merge
from sglang.srt.requests.completion.output import Assembler, Finish, Output, PromptLogprobs
from sglang.srt.requests.completion.readout import Reading, read_all, refused
from sglang.srt.requests.completion.whole_choices import ScoredChoice, pick, score
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

__all__ = ["Completer", "EngineLost"]


class Completer:
    """Completes prompts on one engine. Every method belongs to the client's event loop.

    ``runs``: requests in flight, for ``abort``. ``encoder``: turns all texts into ids.
    """

    def __init__(self, client: Client, tokenizer: Tokenizer, tokenized_bytes: int = MOST) -> None:
        self.client, self.tokenizer = client, tokenizer
        self.encoder = Encoder(tokenizer, tokenized_bytes)
        self.runs: set[_CompletionRun | Reading] = set()

    async def encode_prompt(self, text: str, add_special_tokens: bool = True) -> Ints:
        """Token ids of a text to be completed; one that is too long is refused, before it is
        tokenized where that is plain.

        Raises RequestError, also as ``Encoder.encode``.
        """
        self.verify_chars(len(text))
        ids = await self.encoder.encode(text, add_special_tokens)
        verify_length(len(ids), self.client.info)
        return ids

    def verify_chars(self, count: int) -> None:
        """Raise RequestError where a text of so many characters is too long, whatever they are. A
        normal form may compose four characters into one."""
        least = count // (4 * self.tokenizer.longest)
        verify_length(least, self.client.info, "at least ")

    def stream(self, request: CompletionRequest) -> AsyncGenerator[Output, None]:
        """``run`` of a request that is verified here. Raises RequestError."""
        return self.run(request.verified(self.client.info))

    async def run(self, request: CompletionRequest) -> AsyncGenerator[Output, None]:
        """The ``n`` completions of a verified request: each Output, the same object, whenever it
        has grown.

        Every Output comes once with ``finish`` set, and that time is its last. Raises
        RequestError, and EngineLost where the engine died.
        """
        run = _CompletionRun(self, request)
        self.runs.add(run)
        try:
            async with aclosing(run.outputs()) as outputs:
                ended: set[int] = set()
                async for output in outputs:
                    if output.index in ended:  # seen finished while an older item was read
                        continue
                    if output.finish is not None:
                        ended.add(output.index)
                    output.seconds = time.monotonic() - run.started
                    yield output
        finally:
            run.close()
            self.runs.discard(run)

    async def generate(self, request: CompletionRequest) -> list[Output]:
        """The ``n`` completions of ``request``, finished. Raises as ``stream`` does."""
        found: dict[int, Output] = {}
        async with aclosing(self.stream(request.unread())) as outputs:
            async for output in outputs:
                found[output.index] = output
        return [found[index] for index in sorted(found)]

    async def read(
        self, requests: Sequence[CompletionRequest], goal: Embed | Distribution
    ) -> list[Done]:
        """The result of ``goal`` for each prompt. Raises RequestError, also where one was aborted,
        and EngineLost. However it ends, nothing of it is left in the engine."""
        readings = [Reading(self.client, request.verified(self.info), goal) for request in requests]
        self.runs.update(readings)
        try:
            return await read_all(readings)
        finally:
            for reading in readings:
                reading.close()
            self.runs.difference_update(readings)

    def encode_inside(self, texts: Sequence[str]) -> list[list[int]]:
        """Canonical ids of texts as they are written behind another; for a thread beside the loop.

        Raises RequestError where the tokenizer cannot write one as it is.
        """
        found, table = self._inside(texts), self.tokenizer.token_bytes
        for text, ids in zip(texts, found):
            if b"".join(table[token] for token in ids) != text.encode():
                raise RequestError(
                    f"choices holds {text!r:.80}, which this model's tokenizer cannot write as it "
                    "is; change it, or remove choices_scoring.",
                    "choices",
                )
        return found

    @cached_property
    def _inside(self) -> Callable[[Sequence[str]], list[list[int]]]:
        return self.tokenizer.vocabulary().encode

    @property
    def info(self) -> EngineInfo:
        return self.client.info

    @property
    def pending(self) -> int:
        """Requests that the engine has not ended yet."""
        return self.client.pending

    @property
    def lost(self) -> EngineLost | None:
        """Reason that the engine can answer no more, None while it can."""
        return self.client.lost

    async def control(self, op: str, seconds: float = 5.0, limit: int = 0) -> Reply:
        """The engine's answer to a Control of ``op`` and ``limit``.

        Raises EngineLost, and TimeoutError where the engine is silent for ``seconds``.
        """
        return await asyncio.wait_for(self.client.control(op, limit), seconds)

    def abort(self, rid: str | None = None, owner: str | None = None) -> int:
        """End requests named ``rid`` (None: all) of ``owner`` (None: of all) with reason "abort";
        return how many."""
        chosen = [
            run
            for run in self.runs
            if (rid is None or run.request.rid == rid)
            and (owner is None or run.request.owner == owner)
        ]
        for run in chosen:
            run.abort()
        return len(chosen)


class _CompletionRun:
    """One request in the engine. ``_open`` holds the contexts that the engine may still hold."""

    def __init__(self, completion: Completer, request: CompletionRequest) -> None:
        self.request, self.started, self.aborted = request, time.monotonic(), False
        self._completion = completion
        self._client, self._tokenizer = completion.client, completion.tokenizer
        self._open: set[int] = set()
        self._inboxes: set[Inbox] = set()
        ends = () if request.sampling.ignore_eos else self._client.info.eos
        self._enders = frozenset((*request.sampling.stop_token_ids, *ends))

    def outputs(self) -> AsyncGenerator[Output, None]:
        request = self.request
        context, opening = self._opening()
        self._open.add(context)
        if (
            request.sampling.n == 1
            and request.sampling.max_new_tokens > 0
            and not request.score_choices
        ):
            return self._generate(0, context, [opening], self._score_from)
        return self._branches(context, opening)

    def _opening(self) -> tuple[int, Verb]:
        """The context of the prompt, and the verb that gives it the prompt."""
        request, resumed = self.request, self.request.resumed
        parked = None if resumed is None else resumed.take(self._client)
        if resumed is None or parked is None:
            context = self._client.new_id()
            return context, request.opening(context)
        return parked, Append(parked, request.prompt[resumed.length :].tobytes())

    async def _branches(self, context: int, opening: Verb) -> AsyncGenerator[Output, None]:
        """Compute the prompt first, then the completions that share it."""
        sampling = self.request.sampling
        done, shared = await self._prefill(context, opening)
        if done.reason == "abort" or self.aborted or sampling.max_new_tokens == 0:
            reason = "abort" if done.reason == "abort" or self.aborted else "length"
            for index in range(sampling.n):
                output = self._output(index, shared)
                output.finish = Finish(reason)
                yield output
            return
        if self.request.score_choices:
            async for output in self._choose(context, shared):
                yield output
            return
        async with aclosing(merge(self._fork(context, shared))) as merged:
            async for _, output in merged:
                yield output

    @property
    def _score_from(self) -> int:
        """The first prompt index whose log-probability is wanted, -1 for none."""
        logprobs = self.request.logprobs
        start = -1 if logprobs is None else logprobs.start
        return start if start < len(self.request.prompt) else -1

    def _output(self, index: int, shared: Output) -> Output:
        """A fresh output that has what all completions of the prompt share."""
        return Output(
            index, shared.stats, prompt_logprobs=shared.prompt_logprobs, started=self.started
        )

    @property
    def _unknown(self) -> RequestStats:
        """Statistics before the engine has reported any."""
        return RequestStats(prompt_tokens=len(self.request.prompt))

    async def _prefill(self, context: int, opening: Verb) -> tuple[Done, Output]:
        """Compute the prompt alone, scored where requested; its facts come in an Output."""
        shared, start = Output(0, self._unknown), self._score_from
        logprobs = self.request.logprobs or Logprobs()
        goal = Score(start, logprobs.top, logprobs.probe) if start >= 0 else Fill()
        close = self.request.sampling.max_new_tokens == 0
        async with aclosing(self._advance(context, goal, [opening], close)) as batches:
            async for events in batches:
                for event in events:
                    if isinstance(event, PromptChunk):
                        found = shared.prompt_logprobs or PromptLogprobs(event.start)
                        shared.prompt_logprobs = found
                        found.extend(event)
                    elif isinstance(event, Done):
                        shared.stats = event.stats
                        if event.reason == "abort":  # in the middle of the report, perhaps
                            shared.prompt_logprobs = None
                        return event, shared
        raise RequestError("The engine ended a prompt without an answer.", code="internal_error")

    def _fork(self, context: int, shared: Output) -> list[AsyncGenerator[Output, None]]:
        """One stream a completion; the first goes on in the prompt's own context.

        The forks are made at once, before that context grows.
        """
        children = [self._client.new_id() for _ in range(self.request.sampling.n - 1)]
        self._open.update(children)
        self._client.send(*(ForkContext(context, child) for child in children))
        return [
            self._generate(index, each, [], -1, shared)
            for index, each in enumerate([context, *children])
        ]

    async def _generate(
        self,
        index: int,
        context: int,
        before: Sequence[Verb],
        score_from: int,
        shared: Output | None = None,
    ) -> AsyncGenerator[Output, None]:
        sampling, logprobs = self.request.sampling, self.request.logprobs
        output = self._output(index, shared or Output(0, self._unknown))
        text = self._tokenizer.detokenizer(sampling.skip_special_tokens)
        assembler = Assembler(
            output, text, self._tokenizer.token_bytes, self._enders, not sampling.no_stop_trim,
            None if shared is None else shared.stats,
        )  # fmt: skip
        goal = Generate(
            nth(sampling, index),
            top=-1 if logprobs is None else logprobs.top,
            score_from=score_from,
            probe=() if logprobs is None else logprobs.probe,
            interval=self.request.interval,
            masked=logprobs is not None and logprobs.masked,
            since=-1 if self.request.resumed is None else self.request.resumed.since,
        )
        async with aclosing(self._advance(context, goal, before, True)) as batches:
            async for events in batches:
                grown = False
                for event in events:
                    if isinstance(event, Tokens):
                        assembler.tokens(event)
                        grown = True
                    elif isinstance(event, PromptChunk):
                        assembler.prompt(event)
                    elif isinstance(event, Done):
                        if grown:
                            yield output
                        assembler.done(event)
                        grown = True
                if grown:
                    yield output

    async def _choose(self, context: int, shared: Output) -> AsyncGenerator[Output, None]:
        """Every completion is one of the choices, sampled by their scores."""
        request, sampling = self.request, self.request.sampling
        choices = await self._choices()
        longest = max(len(choice.tokens) for choice in choices)
        if longest > sampling.max_new_tokens:
            raise RequestError(
                f"choices has one of {longest} tokens; at most {sampling.max_new_tokens} can "
                "follow the prompt (max_new_tokens, or the room left).",
                "choices",
            )
        await score(choices, lambda choice: self._score(context, choice))
        for index in range(sampling.n):
            output = self._output(index, shared)
            if self.aborted or any(len(c.logprobs) != len(c.tokens) for c in choices):
                output.finish = Finish("abort")
                yield output
                continue
            totals = [choice.total for choice in choices]
            chosen = choices[pick(totals, nth(sampling, index))]
            output.text, output.tokens = chosen.text, list(chosen.tokens)
            output.released = len(output.tokens)
            output.choice_logprobs = totals
            if request.logprobs is not None:
                output.logprobs, output.tops = chosen.logprobs, chosen.tops
                output.probes = chosen.probes
            output.stats = shared.stats.followed_by(chosen.stats, 0.0)
            output.finish = Finish("stop")
            yield output

    async def _choices(self) -> list[ScoredChoice]:
        """Raises RequestError."""
        assert self.request.sampling.constraint is not None
        texts = self.request.sampling.constraint.choices()
        size = sum(map(bytes_of, texts))
        found = await self._completion.encoder.run(size, self._completion.encode_inside, texts)
        return [ScoredChoice(text, ids) for text, ids in zip(texts, found)]

    async def _score(self, context: int, choice: ScoredChoice) -> AsyncGenerator[Event, None]:
        """Events of the choice behind the prompt, in a context of its own."""
        logprobs, start = self.request.logprobs or Logprobs(), len(self.request.prompt)
        child = self._client.new_id()
        if not self.aborted:
            self._open.add(child)
        appended = Append(child, ints(choice.tokens).tobytes())
        before: list[Verb] = [ForkContext(context, child), appended]
        goal = Score(start, logprobs.top, logprobs.probe)
        async with aclosing(self._advance(child, goal, before, True)) as batches:
            async for events in batches:
                for event in events:
                    if isinstance(event, Done):
                        choice.stats = event.stats
                    yield event

    async def _advance(
        self, context: int, goal: Any, before: Sequence[Verb], close: bool
    ) -> AsyncGenerator[list[Event], None]:
        """Events of one request, as many at a time as have come. Raises Failed as RequestError."""
        request = self._client.new_id()
        if self.aborted:  # the context is closed already
            yield [Done(request, "abort", stats=self._unknown)]
            return
        resumed = self.request.resumed
        arrived = 0.0 if resumed is None else resumed.arrived
        advance = Advance(context, request, goal, self.request.priority, close, arrived)
        inbox = self._client.submit(request, [*before, advance], self.request.rid)
        self._inboxes.add(inbox)
        while not inbox.ended:
            events = await inbox.take()
            if inbox.ended and close:
                self._open.discard(context)
            last = events[-1]
            if not isinstance(last, Failed):
                yield events
                continue
            if len(events) > 1:
                yield events[:-1]
            raise refused(last)

    def abort(self) -> None:
        """Close the contexts; what runs on them ends with reason "abort"."""
        self.aborted = True
        self._close_contexts()

    def close(self) -> None:
        """Abort, and listen no more."""
        for inbox in self._inboxes:
            inbox.close()
        self._close_contexts()

    def _close_contexts(self) -> None:
        if self._open:
            with suppress(EngineLost):
                self._client.send(*(Close(context) for context in sorted(self._open)))
            self._open.clear()
