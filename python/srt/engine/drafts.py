"""Drafts: tokens guessed ahead of the draw, and their verification.

A drafter proposes; the pass that computes the drafts' KV also draws at each of their positions; the
draws count up to the first that differs from its draft. A draw is a function of the distribution
and of ``uniform(seed, index)``, so the text is the one that would be drawn token by token, greedy
or sampled. (Leviathan et al. 2023 accept a draft with probability p / q; a draft that is certain of
itself, q = 1, is here accepted with probability p too, with the very same random number.)

    grammar   forced text whose tokens are not certain, of every constrained request
    ngram     what followed the last tokens before (``lookup``)
    draft     what a smaller model draws (``draft_model``)

The last two are speculation, which a request asks for or the server's default does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sglang.srt.config.sections import MAX_DRAFTS
from sglang.srt.core.batch import Drawn, Row, RowOutput
from sglang.srt.core.messages import Generate
from sglang.srt.core.request import Request
from sglang.srt.engine.grammar_budget import GrammarBudget
from sglang.srt.engine.lookup import LookupDrafter
from sglang.srt.memory.store import Store

COSTLY = 2e-3  # processor seconds of a grammar's step: a request with a longer one has no drafts
GRAMMAR_DRAFTS = 16  # a pass and request
LONGEST_REST = 64  # tokens without a draft, after drafts that were all in vain


class Drafter(Protocol):
    """Guesses what follows. The guess decides how fast a text is written, never which."""

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """For each request, whose work is its last token, at most so many tokens."""
        ...

    def forget(self, request: Request) -> None:
        """The request has ended."""
        ...


class GrammarDrafter:
    """Forced text whose tokens are not certain, because the text behind it may merge with it."""

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        budget = GrammarBudget()
        return [self._guess(request, limit, budget) for request, limit in wanted]

    def _guess(self, request: Request, limit: int, budget: GrammarBudget) -> list[int]:
        if request.matcher is None or not budget.open:
            return []
        try:
            with budget.charge(request):
                return request.matcher.draft(limit)
        except Exception:
            return []  # the mask that is asked for next says why

    def forget(self, request: Request) -> None:
        pass


class Pace:
    """Whether a request gets drafts of one source: none for longer and longer while none of them is
    drawn."""

    def __init__(self) -> None:
        self._misses = self._resume = 0

    def size(self, drawn: int) -> int:
        """How many, for a request that has drawn so many tokens."""
        return MAX_DRAFTS if drawn >= self._resume else 0

    def note(self, count: int, kept: int, drawn: int) -> None:
        """``kept`` of ``count`` drafts were drawn, and the request now has ``drawn`` tokens."""
        self._misses = 0 if kept else self._misses + 1
        if not kept:
            self._resume = drawn + min(1 << self._misses, LONGEST_REST)


class Stride(Pace):
    """And how many, where each costs something: twice as many after all were drawn, else one more
    than were."""

    def __init__(self) -> None:
        super().__init__()
        self._size = 2

    def size(self, drawn: int) -> int:
        return min(super().size(drawn), self._size)

    def note(self, count: int, kept: int, drawn: int) -> None:
        super().note(count, kept, drawn)
        if kept < count:
            self._size = kept + 1
        elif count == self._size:  # no other limit has made them fewer
            self._size = min(2 * count, MAX_DRAFTS)


@dataclass(slots=True)
class _Progress:
    """Of one request: whose drafts its row has now, and the pace of each source."""

    source: str = ""
    paces: dict[str, Pace] = field(default_factory=dict)

    def pace(self, source: str) -> Pace:
        if source not in self.paces:
            self.paces[source] = Stride() if source == "draft" else Pace()
        return self.paces[source]


class Drafts:
    """Who guesses for whom, how much, and what became of it.

    Args:
        jumps: how forced text is written (``GrammarConfig.jumps``): drafts of grammars are a part
            of "exact", and a text that "string" may rewrite has none at all.
        default: the speculation of requests that leave it to the server: "none", "ngram", "draft".
        most: drafts a pass and request.
        room: tokens that a pass computes for little more than one. Those that are drawn go first,
            speculation has the rest: beyond, a draft that fails costs what a token costs.
        model: the drafter "draft"; without it nobody may ask for it.
    """

    def __init__(
        self,
        jumps: str = "exact",
        default: str = "none",
        most: int = 16,
        room: int = 64,
        model: Drafter | None = None,
    ) -> None:
        self._jumps, self._default, self._most, self._room = jumps, default, most, room
        self._drafters: dict[str, Drafter] = {"grammar": GrammarDrafter(), "ngram": LookupDrafter()}
        if model is not None:
            self._drafters["draft"] = model
        self._progress: dict[int, _Progress] = {}

    def sources(self, request: Request) -> list[str]:
        """Who may guess for a request, the first one first."""
        if not isinstance(request.goal, Generate):
            return []
        found = []
        if request.matcher is not None:
            if self._jumps == "string":
                return []
            if self._jumps == "exact":
                found.append("grammar")
        asked = request.goal.sampling.speculation
        asked = self._default if asked == "auto" else asked
        if asked in self._drafters:
            found.append(asked)
        return found

    def wanted(self, request: Request, running: int) -> bool:
        """Whether the next pass, of so many requests, may have drafts of this one, for which its
        last token must be known."""
        progress = self._progress.get(request.id)
        drawn = request.drawn + request.pending
        return request.growth > 1 and any(
            progress is None or progress.pace(source).size(drawn) > 0
            for source in self.sources(request)
            if source == "grammar" or running < self._room
        )

    def propose(self, requests: Sequence[Request], running: int) -> Mapping[int, list[int]]:
        """Drafts by request, for requests that will have no work left but their last token. A draw
        always follows the last draft. ``running``: requests of the pass."""
        found: dict[int, list[int]] = {}
        left = max(self._room - running, 0)
        for source, drafter in self._drafters.items():
            free = source == "grammar"  # its drafts are few, and most of them are drawn
            wanted = self._wanted(source, [r for r in requests if r.id not in found])
            if not wanted or not (free or left):
                continue
            if source == "draft":  # to make them costs something too
                share = left // len(wanted)
                wanted = [(request, min(size, share)) for request, size in wanted if share]
            made = [
                (request, drafts)
                for (request, _), drafts in zip(wanted, drafter.propose(wanted))
                if drafts
            ]
            share = MAX_DRAFTS if free else left // max(len(made), 1)
            for request, drafts in made:
                if share:
                    found[request.id] = drafts[:share]
                    self._progress[request.id].source = source
                    left -= 0 if free else len(found[request.id])
        return found

    def _wanted(self, source: str, requests: Sequence[Request]) -> list[tuple[Request, int]]:
        """Who is to have how many of a source."""
        most = GRAMMAR_DRAFTS if source == "grammar" else self._most
        out = []
        for request in requests:
            costly = request.matcher is not None and request.cost > COSTLY
            if source in self.sources(request) and not costly:
                progress = self._progress.setdefault(request.id, _Progress())
                size = progress.pace(source).size(request.drawn)
                out.append((request, min(size, most, request.growth - 1)))
        return [(request, size) for request, size in out if size > 0]

    def verify(self, store: Store, request: Request, row: Row, out: RowOutput) -> list[Drawn]:
        """The draws that count, all but the last equal to their drafts. The context keeps those.
        They are accepted when they are collected: the text may end before the last of them."""
        if not out.checks:  # there were no drafts, or the row failed as a whole
            return [out]
        count = len(row.checks)
        drafts = row.tokens[len(row.tokens) - count :]
        kept = 0
        while kept < count and out.checks[kept].token == drafts[kept]:
            kept += 1
        store.truncate(request.context, len(request.context.tokens) - count + kept)
        request.stats.drafted_tokens += count
        progress = self._progress[request.id]
        progress.pace(progress.source).note(count, kept, request.drawn + kept + 1)
        return [*out.checks, out][: kept + 1]

    def forget(self, request: Request) -> None:
        """The request has ended."""
        if self._progress.pop(request.id, None) is not None:
            for drafter in self._drafters.values():
                drafter.forget(request)
