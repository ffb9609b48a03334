"""Collector: turns a row's outputs (samples, log-probabilities) into the request's events."""

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
MAX_FORCED = 256  # forced tokens of a request a pass: all other requests wait meanwhile
FORCED_AT_ONCE = 32  # forced tokens between two checks of the budget


class Collector:
    """Appends generated tokens to their contexts, finds stops and limits, and makes events.

    Args:
        eos: ids that end a generation unless the request ignores them.
        token_bytes: the bytes of each token id; ids beyond the end have no text.
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
        """Restore the text that a request generated in a lost engine (``Generate.generated``).
        Return its terminal event if that text already ends (stop, length), else None. Raises
        ValueError if searching the text for stops costs more than a step may."""
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
        if request.spec.limit < 1 and goal.sampling.constraint is None:  # ``begin`` does the rest
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
            samples: samples of accepted drafts, then one more (``Drafts.verify``).
            complete: whether all tokens of the context now have KV.
            budget: processor time for the grammars of the pass.
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
            return events  # a later pass computes more of the prompt
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
        """Return the events of a constrained request before its first pass: its first forced
        tokens. Return [] if the prompt's log-probabilities must be reported first."""
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
        """Return the last events of a request that ends for another reason than its outputs."""
        return [*emit(request), self.done(request, reason)]

    def failed(self, request: Request, message: str, code: str = "internal") -> list[Event]:
        """Return the last events of a request that the engine must fail."""
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
        """Return the terminal event of a text that is valid and that no token may follow."""
        done = self.done(request, "error")
        done.message = message
        return done

    # -- samples ---------------------------------------------------------------------------------

    def _postpone(self, request: Request) -> list[Event]:
        """Let a later pass sample the request's token: the grammars' budget is spent."""
        self._store.truncate(request.context, request.known)
        self._store.redo(request.context)
        request.scheduling.postponed += 1
        self._stats.postponed_rows += 1
        return []

    def _generated(
        self, request: Request, goal: Generate, samples: Sequence[Drawn], budget: GrammarBudget
    ) -> list[Event]:
        """Append the samples and the forced tokens after them. Return events once ``goal.interval``
        tokens are buffered. The first sample is emitted at once, with the statistics so far."""
        generation, stats = request.generation, request.stats
        request.scheduling.postponed = 0
        if generation.matcher is not None and generation.matcher.finished:
            return [self.done(request, "stop")]  # the pass computed prompt log-probabilities only
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
        """Append the samples, then the tokens that the grammar forces. Return the events that must
        follow the buffered tokens: a terminal event, or a rewrite of tokens."""
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
        event if the text ends with this token, else None."""
        generation, tokens = request.generation, request.context.tokens
        known = request.spec.prompt + len(generation.tokens)
        if len(tokens) == known:
            tokens.append(token)
        else:  # an equal draft, or the token's placeholder
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
        """Advance the grammar by a token. Return a terminal event if the grammar refuses it."""
        request.progress.at(GRAMMAR, request.id)
        try:
            if matcher.advance(token):
                return None
        except GrammarError as error:  # a limit of one step was exceeded; the token was allowed
            return self._dead_end(request, str(error))
        return self._failure(request, f"token {token} was sampled against the grammar")

    def _jump(self, request: Request, goal: Generate, budget: GrammarBudget) -> list[Event]:
        """Append the tokens that the grammar forces; the next pass computes their KV. Requests with
        log-probabilities get none: there forced tokens are drafts, whose outputs are read."""
        if goal.top >= 0 or goal.probe:
            return []
        request.progress.at(GRAMMAR, request.id)
        try:
            if self._jumps == "exact":
                return self._force_all(request, goal, budget)
            if self._jumps == "string" and budget.open:  # without budget: after the next token
                return self._rewrite(request, goal)
        except GrammarError as error:
            return [self._dead_end(request, str(error))]
        return []

    def _force_all(self, request: Request, goal: Generate, budget: GrammarBudget) -> list[Event]:
        """Append forced tokens, a few at a time, while the budget lasts. Further forced tokens are
        appended after the next pass, or sampled: the text is the same."""
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
        """Return the first tokens of ``forced``, as many as this step can search for stop patterns.
        The rest is sampled one token a pass, or forced in a later step: the text is the same."""
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
        """Append ``forced``, whose first ``again`` bytes are in the text already. Return [the
        terminal event] if the text ends at one of these tokens, else []."""
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
        """Append the forced text, tokenize the whole text anew, and replace tokens from the first
        that differs (jump-forward, SGLang paper, section 4). The text before stays the same."""
        generation = request.generation
        assert generation.matcher is not None
        taken, tokens = generation.matcher.rewrite()
        ends = {*forbidden(request, goal, self._ends), *goal.sampling.stop_token_ids}
        growth = len(tokens) - taken
        if not tokens or growth > request.growth or taken > len(generation.tokens):
            return []  # nothing is forced, or tokens of an earlier request would change (``since``)
        if ends & set(tokens):
            return []  # an end token would cut text that was generated
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
    """Return [an event with the buffered tokens], or [] if no token is buffered."""
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
    """Return an event with the prompt's log-probabilities that one row computed. Each row has its
    own event, so that a step sends only log-probabilities that it computed.

    Token ``context.tail`` (0 in a plain context) has no log-probability, since no token precedes
    it: a report that begins there begins with None.
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
    """Keep the row's hidden states: the last token's, the sum of all, or all one by one."""
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
    """Return the embedding: the pooled hidden states as float32 in native byte order."""
    vectors: Sequence[float] = request.outputs.pooled
    if goal.pooling == "mean":
        vectors = [value / max(request.outputs.summed, 1) for value in vectors]
    return array("f", vectors).tobytes()
