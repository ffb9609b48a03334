"""Collector: the events of one row's outputs."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from operator import add

from msgspec.structs import replace
from sglang.srt.core.batch import NONE_ALLOWED, Drawn, Row, RowOutput
from sglang.srt.core.clock import Clock
from sglang.srt.core.matcher import GrammarError, Matcher
from sglang.srt.core.messages import (
    Distribution,
    Done,
    Embed,
    Event,
    Failed,
    Generate,
    PromptChunk,
    PromptProgress,
    Tokens,
)
from sglang.srt.core.progress import GRAMMAR, STOP_PATTERNS
from sglang.srt.core.request import Request
from sglang.srt.core.work import STEP_SEARCH, TooMuchWork
from sglang.srt.engine.engine_stats import EngineStats
from sglang.srt.engine.masks import GrammarBudget
from sglang.srt.engine.rows import forbidden
from sglang.srt.memory.store import Store

log = logging.getLogger("sglang.srt.engine")
MAX_FORCED = 256  # tokens a pass: all other requests wait while they are found
FORCED_AT_ONCE = 32  # tokens between two looks at the budget


class Collector:
    """Appends generated tokens to their contexts, finds stops and limits, and makes events.

    Args:
        eos: ids that end a generation unless the request ignores them.
        token_bytes: the text of each id; an id beyond the end has none.
        jumps: how forced text is generated (``GrammarConfig.jumps``).

    Attributes:
        searched: operations on stop patterns since the step began; the engine sets it to 0.
    """

    def __init__(
        self,
        eos: tuple[int, ...],
        token_bytes: Sequence[bytes],
        stats: EngineStats,
        store: Store,
        jumps: str,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._store = store
        self._ends, self._eos, self._jumps = eos, frozenset(eos), jumps
        self._bytes = token_bytes
        self._stats = stats
        self.searched = 0

    def resumed(self, request: Request) -> Done | None:
        """Take the text that a request had in a lost engine (``Generate.generated``); return its
        terminal event where the text ends there already. Raises ValueError where the text costs
        more to search than a step may."""
        goal, generation, watch = request.spec.goal, request.generation, request.generation.watch
        if not isinstance(goal, Generate) or not goal.generated:
            return None
        generated = request.context.tokens[-goal.generated :]
        text = b"".join(self._bytes[token] for token in generated if token < len(self._bytes))
        generation.length = len(text)
        if watch is not None and watch.cost * len(text) > STEP_SEARCH:
            raise ValueError(
                f"stop_regex would have to read {len(text)} bytes again, {watch.cost} operations "
                f"each; at most {STEP_SEARCH} are done at once. Begin the generation anew"
            )
        try:
            hit = None if watch is None else watch.feed(text)
        except TooMuchWork as error:
            raise ValueError(str(error)) from error
        last = generated[-1]
        if self._ends_text(goal, last):
            return self.done(request, "stop", last, len(text) - len(self._bytes[last]))
        if hit is not None:
            return self.done(request, "stop", hit.matched, hit.cut)
        if request.spec.limit < 1 and goal.sampling.constraint is None:  # else: ``begin``
            return self.done(request, "length")
        return None

    # -- one row ---------------------------------------------------------------------------------

    def collect(
        self,
        request: Request,
        row: Row,
        out: RowOutput,
        samples: Sequence[Drawn],
        complete: bool,
        budget: GrammarBudget,
    ) -> list[Event]:
        """Return the events of a computed row. A terminal event, if any, is the last.

        Args:
            samples: the row's samples that count.
            complete: whether the row ended all the work of its context.
            budget: of what the grammars of the pass's requests may cost now.
        """
        error, grammar = samples[-1].error, request.generation.matcher is not None
        if error and not samples[-1].postponed and not (grammar and error.startswith(NONE_ALLOWED)):
            return self.failed(request, error)
        events: list[Event] = []
        if row.score is not None:
            events.append(_report(request, out))
        if row.pool >= 0:
            _pool(request, row, out)
        spec = request.spec
        if spec.report_prompt and not request.sampled:
            ready = min(row.end, spec.prompt)
            events.append(PromptProgress(request.id, ready, request.stats.cached_tokens))
        if not complete:
            return events  # more of the prompt is to be computed
        if grammar and (samples[0].postponed or not budget.open):
            return events + self._postpone(request)
        goal = spec.goal
        if not request.generation.tokens and spec.score_from >= 0 and not request.outputs.reported:
            events.append(_report(request, out))  # a prompt of one token was never scored
        if isinstance(goal, Generate):
            return events + self._generated(request, goal, samples, budget)
        done = self.done(request, "done")
        if isinstance(goal, Distribution):
            done.top, done.probe = out.top, out.probe
        elif isinstance(goal, Embed):
            done.embedding = _embedding(request, goal)
        return [*events, done]

    def begin(self, request: Request, budget: GrammarBudget) -> list[Event]:
        """Return the events of a constrained request before its first pass: the forced beginning.
        There are none where the prompt's log-probabilities are to be reported first."""
        goal, matcher = request.spec.goal, request.generation.matcher
        assert isinstance(goal, Generate)
        assert matcher is not None
        if request.spec.score_from >= 0:
            return []
        if matcher.finished:
            return [self.done(request, "stop")]
        if request.spec.limit < 1:
            return [self.done(request, "length")]
        more = self._jump(request, goal, budget)
        return [*emit(request), *more]

    # -- terminal events -------------------------------------------------------------------------

    def ended(self, request: Request, reason: str) -> list[Event]:
        """Return the last events of a request that ends from outside its rows."""
        return [*emit(request), self.done(request, reason)]

    def failed(self, request: Request, message: str, code: str = "internal") -> list[Event]:
        """Return the last events of a request that cannot go on, by no fault of its own."""
        return [*emit(request), self._failure(request, message, code)]

    def done(
        self, request: Request, reason: str, matched: str | int | None = None, cut: int = -1
    ) -> Done:
        """Count the end of a request and return its terminal event."""
        stats, total = request.stats, self._stats
        if reason == "abort":
            total.aborted += 1
        else:
            total.finished += 1
        total.forced_tokens += stats.forced_tokens
        total.drafted_tokens += stats.drafted_tokens
        total.accepted_tokens += stats.accepted_tokens
        stats.completion_tokens = len(request.generation.tokens)
        return Done(request.id, reason, matched, cut, stats)

    def _failure(self, request: Request, message: str, code: str = "internal") -> Failed:
        self._stats.failed += 1
        return Failed(request.id, code, message)

    def _dead_end(self, request: Request, message: str) -> Done:
        """No token can follow; the text so far is valid."""
        done = self.done(request, "error")
        done.message = message
        return done

    # -- samples ---------------------------------------------------------------------------------

    def _postpone(self, request: Request) -> list[Event]:
        """The budget was spent before this request's turn: a later pass samples its token."""
        self._store.truncate(request.context, request.known)
        self._store.redo(request.context)
        request.scheduling.postponed += 1
        self._stats.postponed_rows += 1
        return []

    def _generated(
        self, request: Request, goal: Generate, samples: Sequence[Drawn], budget: GrammarBudget
    ) -> list[Event]:
        """Append the samples and what is forced after them. Tokens are buffered up to
        ``goal.interval``; the first sample is emitted at once, with the statistics so far."""
        generation, stats = request.generation, request.stats
        request.scheduling.postponed = 0
        if generation.matcher is not None and generation.matcher.finished:
            return [self.done(request, "stop")]  # only the prompt's log-probabilities were wanted
        first = not request.sampled and not samples[0].error
        if first:
            stats.first_token_seconds = self._clock.now() - request.spec.received
        more = self._append(request, goal, samples, budget)
        if not more and not first and len(generation.tokens) - generation.emitted < goal.interval:
            return []
        events: list[Event] = [*emit(request), *more]
        if first and isinstance(events[0], Tokens):
            events[0].stats = replace(stats)
        return events

    def _append(
        self, request: Request, goal: Generate, samples: Sequence[Drawn], budget: GrammarBudget
    ) -> list[Event]:
        """Append the samples, then what the grammar forces. Return the events other than those of
        the buffered tokens."""
        generation, drafts = request.generation, len(samples) - 1
        for index, sample in enumerate(samples):
            late = index > 0 and generation.matcher is not None and not budget.open
            if sample.postponed or late:
                return self._postpone(request)
            if sample.error:
                return [self._dead_end(request, sample.error.removeprefix(f"{NONE_ALLOWED}: "))]
            if goal.top >= 0 or goal.probe:
                generation.samples.append(sample)
            if index < drafts:
                request.stats.accepted_tokens += 1
            end = self._take(request, goal, sample.token)
            if end is not None:
                return [end]
        return [] if generation.matcher is None else self._jump(request, goal, budget)

    def _take(
        self, request: Request, goal: Generate, token: int, again: int = 0
    ) -> Done | Failed | None:
        """Append a token whose first ``again`` bytes are in the text already. Return the terminal
        event where the text ends with it."""
        generation, tokens = request.generation, request.context.tokens
        known = request.spec.prompt + len(generation.tokens)
        if len(tokens) == known:
            tokens.append(token)
        else:  # a draft that equals it, or its placeholder
            tokens[known] = token
        generation.tokens.append(token)
        self._stats.generated_tokens += 1
        before = generation.length
        data = (self._bytes[token] if token < len(self._bytes) else b"")[again:]
        generation.length += len(data)
        hit, watch = None, generation.watch
        if watch is not None:
            if watch.cost:
                request.progress.at(STOP_PATTERNS, request.id)
                self.searched += len(data) * watch.cost
            try:
                hit = watch.feed(data)
            except TooMuchWork as error:
                return self._dead_end(request, str(error))
            except Exception as error:  # a bug; other requests go on
                log.exception("the search for stops of request %d failed", request.id)
                text = f"the search for stops failed: {type(error).__name__}: {error}"
                return self._failure(request, text)
        if self._ends_text(goal, token):
            return self.done(request, "stop", token, before)
        matcher = generation.matcher
        if matcher is not None and (end := self._advance_grammar(request, matcher, token)):
            return end
        if hit is not None:
            return self.done(request, "stop", hit.matched, hit.cut)
        if matcher is not None and matcher.finished:
            return self.done(request, "stop")
        if len(generation.tokens) >= request.spec.limit:
            return self.done(request, "length")
        return None

    def _ends_text(self, goal: Generate, token: int) -> bool:
        sampling = goal.sampling
        return token in sampling.stop_token_ids or (token in self._eos and not sampling.ignore_eos)

    # -- grammars --------------------------------------------------------------------------------

    def _advance_grammar(
        self, request: Request, matcher: Matcher, token: int
    ) -> Done | Failed | None:
        """Advance the grammar by a token; return the terminal event where it cannot."""
        request.progress.at(GRAMMAR, request.id)
        try:
            if matcher.advance(token):
                return None
        except GrammarError as error:  # a limit of a step: the token was allowed
            return self._dead_end(request, str(error))
        return self._failure(request, f"token {token} was sampled against the grammar")

    def _jump(self, request: Request, goal: Generate, budget: GrammarBudget) -> list[Event]:
        """Append the tokens that the grammar leaves no alternative to; their KV is the next pass's
        work. Where log-probabilities are wanted they are drafts instead, whose outputs are read."""
        if goal.top >= 0 or goal.probe:
            return []
        request.progress.at(GRAMMAR, request.id)
        try:
            if self._jumps == "exact":
                return self._force_all(request, goal, budget)
            if self._jumps == "string" and budget.open:  # else after the next token
                return self._rewrite(request, goal)
        except GrammarError as error:
            return [self._dead_end(request, str(error))]
        return []

    def _force_all(self, request: Request, goal: Generate, budget: GrammarBudget) -> list[Event]:
        """Append what is forced, a few tokens at a time while the budget lasts. The rest is forced
        after the next pass, or sampled, with the same result."""
        stats, matcher = request.stats, request.generation.matcher
        assert matcher is not None
        most = stats.forced_tokens + MAX_FORCED
        while stats.forced_tokens < most and budget.open:
            before = stats.forced_tokens
            forced = matcher.forced(min(request.growth, FORCED_AT_ONCE))
            events = self._force(request, goal, self._affordable(request, forced))
            if events or stats.forced_tokens - before < FORCED_AT_ONCE:
                return events
        return []

    def _affordable(self, request: Request, forced: Sequence[int]) -> Sequence[int]:
        """The beginning of ``forced`` that can be searched for stop patterns in this step. The rest
        is sampled one token a pass, or forced in a later step: the text is the same."""
        watch = request.generation.watch
        if watch is None or not watch.cost:
            return forced
        room = (STEP_SEARCH - self.searched) // watch.cost
        for count, token in enumerate(forced):
            room -= len(self._bytes[token])
            if room < 0:
                return forced[:count]
        return forced

    def _force(
        self, request: Request, goal: Generate, forced: Sequence[int], again: int = 0
    ) -> list[Event]:
        """Append ``forced``, whose first ``again`` bytes are in the text already. Return the
        terminal event where the text ends among them."""
        for token in forced:
            if token in forbidden(request, goal, self._ends):
                break
            request.stats.forced_tokens += 1
            end = self._take(request, goal, token, again)
            again = max(again - len(self._bytes[token]), 0)
            if end is not None:
                return [end]
        return []

    def _rewrite(self, request: Request, goal: Generate) -> list[Event]:
        """Append what is forced as text, tokenize all the text anew, and go on from the first token
        that differs (the jump of the SGLang paper, section 4). Tokens may change, text does not."""
        generation = request.generation
        assert generation.matcher is not None
        taken, tokens = generation.matcher.rewrite()
        ends = {*forbidden(request, goal, self._ends), *goal.sampling.stop_token_ids}
        growth = len(tokens) - taken
        if not tokens or growth > request.growth or taken > len(generation.tokens):
            return []  # tokens of an earlier request stay (``Generate.since``)
        if ends & set(tokens):
            return []  # text that was generated must not be cut
        events = emit(request)
        generation.matcher.rollback(taken)
        kept = request.known - taken
        again = sum(len(self._bytes[token]) for token in request.context.tokens[kept:])
        self._store.truncate(request.context, kept)
        del generation.tokens[len(generation.tokens) - taken :]
        generation.emitted = len(generation.tokens)
        self._stats.generated_tokens -= taken
        request.stats.forced_tokens -= taken
        end = self._force(request, goal, tokens, again)
        news = emit(request)
        if taken:
            news = news or [Tokens(request.id, [])]
            news[0].taken = taken
        return [*events, *news, *end]


def emit(request: Request) -> list[Tokens]:
    """Return an event with the buffered tokens, if there are any."""
    generation = request.generation
    start, end = generation.emitted, len(generation.tokens)
    if start == end:
        return []
    generation.emitted = end
    held = 0 if generation.watch is None else generation.watch.held
    news = Tokens(request.id, generation.tokens[start:].tolist(), held)
    if generation.samples:
        samples, goal = generation.samples, request.spec.goal
        generation.samples = []
        assert isinstance(goal, Generate)
        if goal.top >= 0:
            news.logprobs = [sample.logprob for sample in samples]
        if goal.top > 0:
            news.tops = [sample.top for sample in samples]
        if goal.probe:
            news.probes = [sample.probe for sample in samples]
    return [news]


def _report(request: Request, out: RowOutput) -> PromptChunk:
    """Return an event with the prompt's log-probabilities that one row computed. Each row has an
    event of its own, so that no step has more of them to send than it computed.

    No token precedes the first one of the context's tail, token 0 in a plain context: a report that
    begins there begins with None.
    """
    spec, outputs = request.spec, request.outputs
    start = spec.score_from + outputs.reported
    opening = [None] if start == request.context.tail < spec.prompt else []
    scores = [*opening, *out.scores]
    outputs.reported += len(scores)
    return PromptChunk(
        request.id,
        start,
        scores,
        [*opening, *out.score_tops] if spec.top else [],
        [*opening, *out.score_probes] if spec.probe else [],
    )


def _pool(request: Request, row: Row, out: RowOutput) -> None:
    """Keep the last token's hidden state, or add to the sum of all."""
    outputs = request.outputs
    before = outputs.pooled
    if not request.spec.reads_all:
        outputs.pooled = out.pooled
        return
    if not before:
        outputs.pooled = out.pooled
    elif row.every:
        outputs.pooled = before + out.pooled
    else:
        outputs.pooled = array("d", map(add, before, out.pooled))
    outputs.summed += len(row.tokens) - row.pool


def _embedding(request: Request, goal: Embed) -> bytes:
    """float32 of the pooled states, in native order."""
    vectors: Sequence[float] = request.outputs.pooled
    if goal.pooling == "mean":
        vectors = [value / max(request.outputs.summed, 1) for value in vectors]
    return array("f", vectors).tobytes()
