"""Completer: completes prompts by the verbs of the engine, for HTTP and ``sglang.Engine``.

    n = 1    Open, Advance(Generate)
    n > 1    Open, Advance(Fill), then n - 1 ForkContext and one Advance(Generate) each
    max 0    Open, Advance(Fill), or Advance(Score) if log-probabilities are wanted
    whole    Open, Advance(Fill), then the choices' scores (``row_scoring``)

A request that continues a parked context sends Append in place of Open, if the engine holds it.

A stream that is closed or cancelled, at any moment, closes its contexts in the engine.

If the engine is lost, a request continues on another engine (``engine_succession``): a generation
after its tokens so far, and a request without generated tokens from its beginning.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import cached_property

from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import Ints
from sglang.srt.core.messages import (
    Advance,
    Append,
    Distribution,
    Done,
    Embed,
    Event,
    Fill,
    ForkContext,
    Generate,
    Goal,
    PromptChunk,
    PromptProgress,
    Reply,
    Score,
    Tokens,
    Verb,
)
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.engine.client import Client, EngineLost, SuspectRequest
from sglang.srt.engine.info import EngineInfo
from sglang.srt.requests.completion.completion_request import (
    CompletionRequest,
    Logprobs,
    nth,
    verify_length,
)
from sglang.srt.requests.completion.encoder import MOST, Encoder, bytes_of
from sglang.srt.requests.completion.engine_succession import EngineContext, EngineSuccession
from sglang.srt.requests.completion.grouped_reading import GroupedReading
from sglang.srt.requests.completion.merge_streams import merge
from sglang.srt.requests.completion.output import Assembler, Finish, Output, PromptLogprobs
from sglang.srt.requests.completion.readout import Reading
from sglang.srt.requests.completion.resume_order import ResumeOrder
from sglang.srt.requests.completion.row_scoring import RowScoring
from sglang.srt.requests.completion.serving_engines import ServingEngines, engines_of, merged
from sglang.srt.requests.completion.token_tree import ScoredRows
from sglang.srt.requests.completion.whole_choices import ScoredChoice, pick
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

__all__ = ["Completer", "EngineLost", "SuspectRequest"]


class Completer:
    """Completes prompts on engines. Every method belongs to the event loop of their clients.

    Attributes:
        engines: engines that requests run on.
        runs: requests in flight, for ``abort``.
        encoder: encodes all texts to token ids.
        resume_order: order in which requests of a lost engine continue on another one.
        max_resumes: number of times that a request may continue on another engine after a loss;
            None: there is no other engine.
    """

    def __init__(
        self,
        engines: ServingEngines | Client,
        tokenizer: Tokenizer,
        tokenized_bytes: int = MOST,
        seed: int = 0,
    ) -> None:
        """
        Args:
            engines: several engines, or the Client of one.
            seed: base of the seeds of generations that have none; their order is added.
        """
        self.engines: ServingEngines = engines_of(engines)
        self.tokenizer = tokenizer
        self._seed, self._generations = seed, 0
        self.encoder = Encoder(tokenizer, tokenized_bytes)
        self.max_resumes: int | None = None
        self.resume_order = ResumeOrder()
        self.runs: set[_CompletionRun | Reading] = set()
        self._scoring = 0  # requests whose rows are scored

    async def encode_prompt(self, text: str, add_special_tokens: bool = True) -> Ints:
        """Return the token ids of a prompt. An obviously too long text is refused before it is
        tokenized.

        Raises RequestError, also that of ``Encoder.encode``.
        """
        self.verify_chars(len(text))
        ids = await self.encoder.encode(text, add_special_tokens)
        verify_length(len(ids), self.info)
        return ids

    def verify_chars(self, count: int) -> None:
        """Raise RequestError if any text of ``count`` characters is too long. The bound is loose,
        because normalization may compose four characters into one."""
        least = count // (4 * self.tokenizer.longest)
        verify_length(least, self.info, "at least ")

    def stream(self, request: CompletionRequest) -> AsyncGenerator[Output, None]:
        """Verify a request and ``run`` it. Raises RequestError and the errors of ``run``."""
        return self.run(request.verified(self.info))

    async def run(self, request: CompletionRequest) -> AsyncGenerator[Output, None]:
        """Yield the outputs of the ``n`` completions of a verified request whenever they have
        grown. A completion has one Output object, which is updated in place.

        The last time that an Output comes it has ``finish`` set. Raises RequestError, and
        EngineLost if the engine died.
        """
        run = _CompletionRun(self, request)
        self.runs.add(run)
        try:
            async with aclosing(run.outputs()) as outputs:
                ended: set[int] = set()
                async for output in outputs:
                    if output.index in ended:  # an earlier item showed its end already
                        continue
                    if output.finish is not None:
                        ended.add(output.index)
                    output.seconds = time.monotonic() - run.started
                    yield output
        finally:
            run.close()
            self.runs.discard(run)

    async def generate(self, request: CompletionRequest) -> list[Output]:
        """Return the ``n`` finished completions of ``request``. Raises the errors of ``stream``."""
        found: dict[int, Output] = {}
        async with aclosing(self.stream(request.unread())) as outputs:
            async for output in outputs:
                found[output.index] = output
        return [found[index] for index in sorted(found)]

    async def read(
        self, requests: Sequence[CompletionRequest], goal: Embed | Distribution
    ) -> list[Done]:
        """Return the result of ``goal`` for each prompt. Raises EngineLost, and RequestError, also
        if a prompt was aborted. In any case all contexts in the engine are closed at the end."""
        checked = [request.verified(self.info) for request in requests]
        return await GroupedReading(checked, goal, self.runs).read(self.succession)

    def new_seed(self) -> int:
        """Return a seed for a generation that has none. The server chooses it and not the engine,
        so that another engine can continue the generation."""
        self._generations += 1
        return hash((self._seed, self._generations)) & (2**63 - 1)

    def succession(self, request: CompletionRequest) -> EngineSuccession:
        """Choose the engine of a new request."""
        return EngineSuccession(self.engines, request, self.resume_order, self.max_resumes)

    def encode_inside(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the canonical ids of texts that follow another text. Call it in a thread.

        Raises RequestError if the tokenizer cannot represent a text exactly.
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
        return self.engines.info

    @property
    def pending(self) -> int:
        """Number of requests that no engine has ended yet."""
        return self.engines.pending + self._scoring

    @property
    def lost(self) -> EngineLost | None:
        """Reason for which no engine can answer any more; None while one can."""
        return self.engines.lost

    async def control(self, op: str, seconds: float = 5.0, limit: int = 0) -> Reply:
        """Send a Control of ``op`` and ``limit`` to all engines; return their merged reply.

        Raises EngineLost, and TimeoutError if an engine is silent for ``seconds``.
        """
        return merged(await self.control_each(op, seconds, limit))

    async def control_each(
        self, op: str, seconds: float = 5.0, limit: int = 0
    ) -> Mapping[str, Reply]:
        """Send a Control to all engines; return their replies by name. Errors as ``control``."""
        return await asyncio.wait_for(self.engines.control(op, limit), seconds)

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
    """One request in the engine."""

    def __init__(self, completion: Completer, request: CompletionRequest) -> None:
        self.request, self._completion = request, completion
        self.started, self._tokenizer = time.monotonic(), completion.tokenizer
        self._engine = completion.succession(request)
        self._rows = RowScoring(self._engine, request, self._advance, self._prompt_again)
        ends = () if request.sampling.ignore_eos else completion.info.eos
        self._enders = frozenset((*request.sampling.stop_token_ids, *ends))

    def outputs(self) -> AsyncGenerator[Output, None]:
        request = self.request
        if (
            request.sampling.n == 1
            and request.sampling.max_new_tokens > 0
            and not request.score_choices
        ):
            return self._generate(0, *self._opening(), self._score_from)
        return self._branches()

    def _opening(self) -> tuple[EngineContext, list[Verb]]:
        """Return the prompt's context, and the verbs that put the prompt into it."""
        request, resumed = self.request, self.request.resumed
        parked = None if resumed is None else resumed.take(self._engine.client)
        context = self._engine.new_context(parked)
        if resumed is None or parked is None:
            return context, [request.opening(context.number, request.generated)]
        new = (request.prompt + request.generated)[resumed.length :]
        return context, [Append(parked, new.tobytes())]

    async def _branches(self) -> AsyncGenerator[Output, None]:
        """Compute the prompt, then run the completions that share it."""
        sampling = self.request.sampling
        done, shared, context = await self._prefill()
        aborted = done.reason == "abort" or self._engine.aborted
        if self.request.scored is not None and not aborted:
            yield await self._score_rows(context, shared, self.request.scored)
            return
        if aborted or sampling.max_new_tokens == 0:
            reason = "abort" if aborted else "length"
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
        """First index of the prompt whose log-probability is wanted; -1: none."""
        logprobs = self.request.logprobs
        start = -1 if logprobs is None else logprobs.start
        return start if start < len(self.request.prompt) else -1

    def _output(self, index: int, shared: Output) -> Output:
        """Return a new output with the facts that all completions of the prompt share."""
        return Output(
            index, shared.stats, prompt_logprobs=shared.prompt_logprobs, started=self.started
        )

    @property
    def _unknown(self) -> RequestStats:
        """Statistics to report before the engine has sent any."""
        return RequestStats(prompt_tokens=len(self.request.prompt))

    async def _prefill(self) -> tuple[Done, Output, EngineContext]:
        """Compute only the prompt. Return its end, an Output with its facts, and the context."""
        start, logprobs = self._score_from, self.request.logprobs or Logprobs()
        goal = Score(start, logprobs.top, logprobs.probe) if start >= 0 else Fill()
        close = self.request.sampling.max_new_tokens == 0 and self.request.scored is None
        while True:
            context, opening = self._opening()
            shared = Output(0, self._unknown)
            try:
                return await self._computed(context, goal, opening, close, shared), shared, context
            except EngineLost as lost:
                await self._engine.replace(context.client, lost)

    async def _computed(
        self,
        context: EngineContext,
        goal: Score | Fill,
        opening: Sequence[Verb],
        close: bool,
        shared: Output,
    ) -> Done:
        """Compute a prompt, write its facts to ``shared``, return the end. Raises EngineLost."""
        async with aclosing(self._advance(context, goal, opening, close)) as batches:
            async for events in batches:
                for event in events:
                    if isinstance(event, PromptChunk):
                        found = shared.prompt_logprobs or PromptLogprobs(event.start)
                        shared.prompt_logprobs = found
                        found.extend(event)
                    elif isinstance(event, Done):
                        shared.stats = event.stats
                        if event.reason == "abort":  # the log-probabilities may be incomplete
                            shared.prompt_logprobs = None
                        return event
        raise RequestError("The engine ended a prompt without an answer.", code="internal_error")

    def _fork(self, context: EngineContext, shared: Output) -> list[AsyncGenerator[Output, None]]:
        """Return a stream for each completion; the first one uses the prompt's own context.

        All forks are sent now, before that context grows.
        """
        children = [self._engine.new_context() for _ in range(self.request.sampling.n - 1)]
        forks = [ForkContext(context.number, child.number) for child in children]
        with suppress(EngineLost):  # each completion handles the loss itself
            context.client.send(*forks)
        return [
            self._generate(index, each, [], -1, shared)
            for index, each in enumerate([context, *children])
        ]

    async def _generate(
        self,
        index: int,
        context: EngineContext,
        before: Sequence[Verb],
        score_from: int,
        shared: Output | None = None,
    ) -> AsyncGenerator[Output, None]:
        sampling = nth(self.request.sampling, index)
        if sampling.seed is None:
            sampling = replace(sampling, seed=self._completion.new_seed())
        output = self._output(index, shared or Output(0, self._unknown))
        text = self._tokenizer.detokenizer(sampling.skip_special_tokens)
        assembler = Assembler(
            output, text, self._tokenizer.token_bytes, self._enders, not sampling.no_stop_trim,
            None if shared is None else shared.stats,
        )  # fmt: skip
        assembler.begin_behind(self.request.generated)
        while True:
            goal = self._goal(sampling, score_from, len(output.tokens))
            try:
                async with aclosing(self._grown(assembler, context, goal, before)) as news:
                    async for _ in news:
                        yield output
                return
            except EngineLost as lost:
                await self._engine.replace(context.client, lost, sampling, output.text)
            assembler.resume()
            context = self._engine.new_context()
            before = [self.request.opening(context.number, output.tokens)]

    async def _grown(
        self, assembler: Assembler, context: EngineContext, goal: Generate, before: Sequence[Verb]
    ) -> AsyncGenerator[None, None]:
        """Yield whenever the completion has grown. Raises EngineLost."""
        async with aclosing(self._advance(context, goal, before, True)) as batches:
            async for events in batches:
                grown = False
                for event in events:
                    if isinstance(event, Tokens):
                        assembler.tokens(event)
                        grown = True
                    elif isinstance(event, PromptChunk):
                        assembler.prompt(event)
                    elif isinstance(event, PromptProgress):
                        assembler.prompt_progress(event)
                        yield
                    elif isinstance(event, Done):
                        if grown:
                            yield
                        assembler.done(event)
                        grown = True
                if grown:
                    yield

    def _goal(self, sampling: SamplingParams, score_from: int, generated: int) -> Generate:
        """Return the goal after the prompt and ``generated`` tokens (from a lost engine)."""
        logprobs, resumed = self.request.logprobs, self.request.resumed
        since = -1 if resumed is None else resumed.since
        return Generate(
            sampling,
            top=-1 if logprobs is None else logprobs.top,
            score_from=-1 if generated else score_from,  # reported before the first token
            probe=() if logprobs is None else logprobs.probe,
            interval=self.request.interval,
            masked=logprobs is not None and logprobs.masked,
            since=len(self.request.prompt) if generated and since < 0 else since,
            generated=generated,
        )

    async def _choose(self, context: EngineContext, shared: Output) -> AsyncGenerator[Output, None]:
        """Sample each completion from the choices, by the choices' scores."""
        request, sampling = self.request, self.request.sampling
        choices = await self._choices()
        longest = max(len(choice.tokens) for choice in choices)
        if longest > sampling.max_new_tokens:
            raise RequestError(
                f"choices has one of {longest} tokens; at most {sampling.max_new_tokens} can "
                "follow the prompt (max_new_tokens, or the room left).",
                "choices",
            )
        choices = await self._rows.scored(context, choices, len(request.prompt))
        for index in range(sampling.n):
            output = self._output(index, shared)
            if self._engine.aborted or any(len(c.logprobs) != len(c.tokens) for c in choices):
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
        """Return the choices with their token ids. Raises RequestError."""
        assert self.request.sampling.constraint is not None
        texts = self.request.sampling.constraint.choices()
        size = sum(map(bytes_of, texts))
        found = await self._completion.encoder.run(size, self._completion.encode_inside, texts)
        return [ScoredChoice(text, ids) for text, ids in zip(texts, found)]

    async def _score_rows(self, context: EngineContext, shared: Output, rows: ScoredRows) -> Output:
        """Return an output with the log-probabilities of rows of tokens, without a text."""
        output = self._output(0, shared)
        found = [ScoredChoice("", row) for row in rows.rows]
        self._completion._scoring += 1
        try:
            scored = await self._rows.scored(context, found, rows.behind)
        finally:
            self._completion._scoring -= 1
        output.row_logprobs = [each.logprobs for each in scored]
        output.row_tokens = self._rows.computed
        cut = any(len(each.logprobs) != len(each.tokens) for each in scored)
        output.finish = Finish("abort" if cut or self._engine.aborted else "length")
        return output

    async def _prompt_again(self) -> EngineContext:
        """Compute the prompt on the current engine, and return its context."""
        return (await self._prefill())[2]

    def _advance(
        self, context: EngineContext, goal: Goal, before: Sequence[Verb], close: bool
    ) -> AsyncGenerator[list[Event], None]:
        """Yield the events of one Advance (``EngineSuccession.advance``)."""
        request, number = self.request, context.client.new_id()
        facts = (request.priority, close, request.waiting_since, request.hint)
        reported = request.report_prompt and isinstance(goal, Generate)
        advance = Advance(context.number, number, goal, *facts, reported)
        return self._engine.advance(context, before, advance, self._unknown)

    def abort(self) -> None:
        """End the unfinished completions with reason "abort"."""
        self._engine.abort()
        self._rows.abort()

    def close(self) -> None:
        """Abort, and drop all later events."""
        self._engine.close()
