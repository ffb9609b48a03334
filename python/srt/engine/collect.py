"""Collector: one row's output becomes the request's events."""

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
    Prompt,
    Tokens,
)
from sglang.srt.core.progress import GRAMMAR, STOP_PATTERNS
from sglang.srt.core.request import Request
from sglang.srt.core.work import STEP_SEARCH, TooMuchWork
from sglang.srt.engine.grammar_budget import GrammarBudget
from sglang.srt.engine.rows import forbidden
from sglang.srt.engine.stats import Stats
from sglang.srt.memory.store import Store

log = logging.getLogger("sglang.srt.engine")
MAX_FORCED = 256  # tokens a pass: all other requests wait while they are found
FORCED_AT_ONCE = 32  # tokens between two looks at the budget


class Collector:
    """Appends drawn tokens to their contexts, finds stops and limits, makes events.

    Args:
        eos: ids that end a generation unless it ignores them.
        token_bytes: the text of each id; beyond its end an id has none.
        jumps: how forced text is written (``GrammarConfig.jumps``).

    Attributes:
        searched: operations on stop patterns since the step began; the engine sets it to 0.
    """

    def __init__(
        self,
        eos: tuple[int, ...],
        token_bytes: Sequence[bytes],
        stats: Stats,
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

    def collect(
        self,
        request: Request,
        row: Row,
        out: RowOutput,
        draws: Sequence[Drawn],
        tip: bool,
        budget: GrammarBudget,
    ) -> list[Event]:
        """Events of one computed row and the draws of it that count; a terminal one, if any, is the
        last. ``tip``: it was all the work there was. ``budget``: of what the grammars of the pass's
        requests may cost now."""
        error, grammar = draws[-1].error, request.matcher is not None
        if error and not draws[-1].postponed and not (grammar and error.startswith(NONE_ALLOWED)):
            return self.failed(request, error)
        events: list[Event] = []
        if row.score is not None:
            events.append(_report(request, out))
        if row.pool >= 0:
            _pool(request, row, out)
        if not tip:
            return events  # more of the prompt to compute
        if grammar and (draws[0].postponed or not budget.open):
            return events + self._postpone(request)
        if request.drawn == 0 and request.score_from >= 0 and request.reported == 0:
            events.append(_report(request, out))  # a prompt of one token was never scored
        if isinstance(request.goal, Generate):
            events += self._drawn(request, request.goal, draws, budget)
        else:
            events.append(self.done(request, "done"))
            if isinstance(request.goal, Distribution):
                events[-1] = self._with_tip(events[-1], out)
            elif isinstance(request.goal, Embed):
                events[-1] = self._with_embedding(events[-1], request)
        return events

    def ended(self, request: Request, reason: str) -> list[Event]:
        """The last events of a request that ends from outside its rows."""
        return [*_untold(request), self.done(request, reason)]

    def failed(self, request: Request, message: str) -> list[Event]:
        """The last events of a request that cannot go on, by no fault of its own."""
        return [*_untold(request), self._failure(request, message)]

    def _failure(self, request: Request, message: str) -> Failed:
        self._stats.failed += 1
        return Failed(request.id, "internal", message)

    def done(
        self, request: Request, reason: str, matched: str | int | None = None, cut: int = -1
    ) -> Done:
        """The terminal event."""
        stats, total = request.stats, self._stats
        if reason == "abort":
            total.aborted += 1
        else:
            total.finished += 1
        total.forced_tokens += stats.forced_tokens
        total.drafted_tokens += stats.drafted_tokens
        total.accepted_tokens += stats.accepted_tokens
        stats.completion_tokens = request.drawn
        return Done(request.id, reason, matched, cut, stats)

    def _with_tip(self, event: Event, out: RowOutput) -> Done:
        assert isinstance(event, Done)
        event.top = out.top
        event.probe = out.probe
        return event

    @staticmethod
    def _with_embedding(event: Event, request: Request) -> Done:
        assert isinstance(event, Done)
        assert isinstance(request.goal, Embed)
        vectors: Sequence[float] = request.pooled
        if request.goal.pooling == "mean":
            vectors = [value / max(request.summed, 1) for value in vectors]
        event.embedding = array("f", vectors).tobytes()
        return event

    def begin(self, request: Request, budget: GrammarBudget) -> list[Event]:
        """What a constrained request writes before its first pass: the forced beginning. Nothing
        where the prompt's log-probabilities are to be reported first."""
        assert isinstance(request.goal, Generate)
        assert request.matcher is not None
        if request.score_from >= 0:
            return []
        if request.matcher.finished:
            return [self.done(request, "stop")]
        return self._jump(request, request.goal, Tokens(request.id, []), budget)

    def _postpone(self, request: Request) -> list[Event]:
        """The budget was spent before the request's turn came: a later pass samples its token."""
        self._store.truncate(request.context, request.known)
        self._store.redo(request.context)
        request.postponed += 1
        self._stats.postponed_rows += 1
        return []

    def _drawn(
        self, request: Request, goal: Generate, draws: Sequence[Drawn], budget: GrammarBudget
    ) -> list[Event]:
        request.postponed = 0
        if request.matcher is not None and request.matcher.finished:
            return [self.done(request, "stop")]  # only the prompt's log-probabilities were wanted
        news = request.untold = request.untold or Tokens(request.id, [])
        events = self._news(request, goal, draws, news, budget)
        nothing_else = all(event is news for event in events)
        if nothing_else and len(news.tokens) < min(goal.interval, request.drawn):
            return []  # the first token was told of
        request.untold = None
        return events

    def _news(
        self,
        request: Request,
        goal: Generate,
        draws: Sequence[Drawn],
        news: Tokens,
        budget: GrammarBudget,
    ) -> list[Event]:
        """``news`` with the draws added, and what else there is to tell."""
        drafts = len(draws) - 1
        for place, draw in enumerate(draws):
            if draw.postponed or (place and request.matcher is not None and not budget.open):
                self._postpone(request)
                return [news]
            if draw.error:
                end = self.dead_end(request, draw.error.removeprefix(f"{NONE_ALLOWED}: "))
                return [news, end] if news.tokens else [end]
            if goal.top >= 0:
                news.logprobs.append(draw.logprob)
                if goal.top:
                    news.tops.append(draw.top)
            if goal.probe:
                news.probes.append(draw.probe)
            if place < drafts:
                request.stats.accepted_tokens += 1
            if request.drawn == request.stats.forced_tokens:  # the first sampled token
                request.stats.first_token_seconds = self._clock.now() - request.received
                news.stats = replace(request.stats)
            stop = self._take(request, goal, draw.token, news)
            if stop is not None:
                return [news, stop]
        return self._jump(request, goal, news, budget)

    def _jump(
        self, request: Request, goal: Generate, news: Tokens, budget: GrammarBudget
    ) -> list[Event]:
        """Write the tokens that the grammar leaves no choice of; their KV is the next pass's work.
        Where log-probabilities are wanted they are drafts instead, which are read."""
        matcher = request.matcher
        if matcher is None or goal.top >= 0 or goal.probe:
            return [news] if news.tokens else []
        more: list[Event] = []
        request.progress.at(GRAMMAR, request.id)
        try:
            if self._jumps == "exact":
                more = self._force_all(request, goal, news, budget)
            elif self._jumps == "string":
                more = self._rewrite(request, goal)
        except GrammarError as error:
            more = [self.dead_end(request, str(error))]
        return [news, *more] if news.tokens else more

    def _force_all(
        self, request: Request, goal: Generate, news: Tokens, budget: GrammarBudget
    ) -> list[Event]:
        """Add what is forced to ``news``, a few tokens at a time while the budget lasts. What is
        left is forced after the next pass, or sampled, which comes to the same."""
        assert request.matcher is not None
        stats = request.stats
        most = stats.forced_tokens + MAX_FORCED
        while stats.forced_tokens < most and budget.open:
            before = stats.forced_tokens
            forced = request.matcher.forced(min(request.growth, FORCED_AT_ONCE))
            events = self._force(request, goal, self._affordable(request, forced), news)
            if events or stats.forced_tokens - before < FORCED_AT_ONCE:
                return events
        return []

    def _affordable(self, request: Request, forced: Sequence[int]) -> Sequence[int]:
        """The beginning of ``forced`` that can be searched for stop patterns in this step. The rest
        comes one a pass, sampled, or is forced in a later step: the text is the same."""
        if request.watch is None or not request.watch.cost:
            return forced
        room = (STEP_SEARCH - self.searched) // request.watch.cost
        for count, token in enumerate(forced):
            room -= len(self._bytes[token])
            if room < 0:
                return forced[:count]
        return forced

    def _force(
        self,
        request: Request,
        goal: Generate,
        forced: Sequence[int],
        news: Tokens,
        again: int = 0,
    ) -> list[Event]:
        """Add ``forced`` to ``news``; their first ``again`` bytes were in the text before. Returns
        the terminal event where the text ends among them."""
        for token in forced:
            if token in forbidden(request, goal, self._ends):
                break
            request.stats.forced_tokens += 1
            end = self._take(request, goal, token, news, again)
            again = max(again - len(self._bytes[token]), 0)
            if end is not None:
                return [end]
        return []

    def _rewrite(self, request: Request, goal: Generate) -> list[Event]:
        """The jump of the SGLang paper (section 4): append what is forced as text, tokenize all the
        text anew, and go on from the first token that differs. Tokens may change, text does not."""
        assert request.matcher is not None
        taken, tokens = request.matcher.rewrite()
        ends = {*forbidden(request, goal, self._ends), *goal.sampling.stop_token_ids}
        if not tokens or len(tokens) - taken > request.growth or ends & set(tokens):
            return []  # what the text has already must not be cut
        request.matcher.rollback(taken)
        kept = request.prompt + request.drawn - taken
        again = sum(len(self._bytes[token]) for token in request.context.tokens[kept:])
        self._store.truncate(request.context, kept)
        request.drawn -= taken
        self._stats.generated_tokens -= taken
        request.stats.forced_tokens -= taken
        news = Tokens(request.id, [], taken=taken)
        more = self._force(request, goal, tokens, news, again)
        return [news, *more] if news.tokens or taken else more

    def _take(
        self, request: Request, goal: Generate, token: int, news: Tokens, again: int = 0
    ) -> Event | None:
        """The text grows by a token, whose first ``again`` bytes it has already. Returns the
        terminal event where it ends there."""
        sampling, tokens = goal.sampling, request.context.tokens
        if len(tokens) == request.known:
            tokens.append(token)
        else:  # a draft, which it equals, or a place kept for it
            tokens[request.known] = token
        request.drawn += 1
        self._stats.generated_tokens += 1
        before = request.length
        data = (self._bytes[token] if token < len(self._bytes) else b"")[again:]
        request.length += len(data)
        news.tokens.append(token)
        hit, held = None, 0
        if request.watch is not None:
            if request.watch.cost:
                request.progress.at(STOP_PATTERNS, request.id)
                self.searched += len(data) * request.watch.cost
            try:
                hit = request.watch.feed(data)
            except TooMuchWork as error:
                return self.dead_end(request, str(error))
            except Exception as error:  # a bug; other requests go on
                log.exception("the search for stops of request %d failed", request.id)
                text = f"the search for stops failed: {type(error).__name__}: {error}"
                return self._failure(request, text)
            held = request.watch.held
        if hit is not None:  # the token may go on behind the stop
            held = request.length - hit.cut
        news.held = held
        ended = token in self._eos and not sampling.ignore_eos
        if ended or token in sampling.stop_token_ids:
            return self.done(request, "stop", token, before)
        if request.matcher is not None and (end := self._obeyed(request, request.matcher, token)):
            return end
        if hit is not None:
            return self.done(request, "stop", hit.matched, hit.cut)
        if request.matcher is not None and request.matcher.finished:
            return self.done(request, "stop")
        if request.drawn >= sampling.max_new_tokens:
            return self.done(request, "length")
        return None

    def _obeyed(self, request: Request, matcher: Matcher, token: int) -> Event | None:
        """The grammar goes on behind a token; the terminal event where it does not."""
        request.progress.at(GRAMMAR, request.id)
        try:
            if matcher.advance(token):
                return None
        except GrammarError as error:  # a limit of a step: the token was allowed
            return self.dead_end(request, str(error))
        return self._failure(request, f"token {token} was drawn against the grammar")

    def dead_end(self, request: Request, message: str) -> Done:
        """No token can follow: the text so far stands."""
        done = self.done(request, "error")
        done.message = message
        return done


def _untold(request: Request) -> list[Tokens]:
    news = request.untold
    return [news] if news is not None and news.tokens else []


def _pool(request: Request, row: Row, out: RowOutput) -> None:
    """The last token's hidden state, or more of the sum of all."""
    if not request.reads_all:
        request.pooled = out.pooled
        return
    before = request.pooled
    if not before:
        request.pooled = out.pooled
    elif row.every:
        request.pooled = before + out.pooled
    else:
        request.pooled = array("d", map(add, before, out.pooled))
    request.summed += len(row.tokens) - row.pool


def _report(request: Request, out: RowOutput) -> Prompt:
    """Event with the prompt's log-probabilities that one row computed. Each row has an event of its
    own, so that no step has more of them to send than it computed.

    No token precedes the first one of the context's tail, token 0 in a plain context: a report that
    begins there begins with None.
    """
    start = request.score_from + request.reported
    opening = [None] if start == request.context.tail < request.prompt else []
    scores = [*opening, *out.scores]
    request.reported += len(scores)
    return Prompt(
        request.id,
        start,
        scores,
        [*opening, *out.score_tops] if request.top else [],
        [*opening, *out.score_probes] if request.probe else [],
    )
