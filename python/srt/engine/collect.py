"""Collector: one row's output becomes the request's events."""

from __future__ import annotations

from collections.abc import Sequence

from srt.core.batch import Row, RowOutput
from srt.core.messages import Distribution, Done, Event, Failed, Generate, Prompt, Tokens
from srt.core.request import Request
from srt.engine.stats import Stats


class Collector:
    """Appends drawn tokens to their contexts, finds stops and limits, makes events.

    Args:
        eos: ids that end a generation unless it ignores them.
        token_bytes: the text of each id; beyond its end an id has none.
    """

    def __init__(self, eos: tuple[int, ...], token_bytes: Sequence[bytes], stats: Stats) -> None:
        self._eos = frozenset(eos)
        self._bytes = token_bytes
        self._stats = stats

    def collect(self, request: Request, row: Row, out: RowOutput) -> list[Event]:
        """Events of one computed row; a terminal one, if any, is the last."""
        if out.error:
            self._stats.failed += 1
            return [Failed(request.id, "internal", out.error)]
        if row.score is not None:
            self._scored(request, row, out)
        if request.context.work > 0:
            return []  # more of the prompt to compute
        events: list[Event] = []
        if request.drawn == 0 and request.score_from >= 0:
            events.append(self._prompt(request))
        if isinstance(request.goal, Generate):
            events += self._drawn(request, request.goal, out)
        else:
            events.append(self.done(request, "done"))
            if isinstance(request.goal, Distribution):
                events[-1] = self._with_tip(events[-1], out)
        return events

    def done(
        self, request: Request, reason: str, matched: str | int | None = None, cut: int = -1
    ) -> Done:
        """The terminal event."""
        if reason == "abort":
            self._stats.aborted += 1
        else:
            self._stats.finished += 1
        return Done(
            request.id, reason, matched, cut, prompt=request.prompt,
            cached=max(request.cached, 0), completion=request.drawn,
            passes=request.passes, queued=request.queued,
        )  # fmt: skip

    def _scored(self, request: Request, row: Row, out: RowOutput) -> None:
        assert row.score is not None
        _open_report(request)
        request.scores.extend(out.scores)
        request.tops.extend(out.score_tops)
        request.probes.extend(out.score_probes)
        request.unscored += len(row.score.targets)

    def _prompt(self, request: Request) -> Prompt:
        _open_report(request)  # a prompt of one token was never scored
        return Prompt(
            request.id,
            request.score_from,
            request.scores,
            request.tops if request.top else [],
            request.probes if request.probe else [],
        )

    def _with_tip(self, event: Event, out: RowOutput) -> Done:
        assert isinstance(event, Done)
        event.top = out.top
        event.probe = out.probe
        return event

    def _drawn(self, request: Request, goal: Generate, out: RowOutput) -> list[Event]:
        token, sampling = out.token, goal.sampling
        request.context.tokens.append(token)
        request.drawn += 1
        self._stats.generated_tokens += 1
        before = request.length
        data = self._bytes[token] if token < len(self._bytes) else b""
        request.length += len(data)
        hit = request.watch.feed(data) if request.watch else None
        held = request.watch.held if request.watch else 0
        if hit is not None:  # the token may go on behind the stop
            held = request.length - hit.cut
        news = Tokens(request.id, [token], held=held)
        if goal.top >= 0:
            news.logprobs = [out.logprob]
            if goal.top:
                news.tops = [out.top]
        if goal.probe:
            news.probes = [out.probe]
        ended = token in self._eos and not sampling.ignore_eos
        if ended or token in sampling.stop_token_ids:
            return [news, self.done(request, "stop", token, before)]
        if hit is not None:
            return [news, self.done(request, "stop", hit.matched, hit.cut)]
        if request.drawn >= sampling.max_new_tokens:
            return [news, self.done(request, "length")]
        return [news]


def _open_report(request: Request) -> None:
    """No token that sees as much precedes the tail's first one, token 0 in a plain context: a
    report that begins there begins with None."""
    if not request.scores and request.score_from == request.context.tail < request.prompt:
        request.scores.append(None)
        request.tops.append(None)
        request.probes.append(None)
