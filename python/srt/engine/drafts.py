"""Drafts: tokens proposed ahead of sampling, and their verification.

A drafter proposes tokens. The pass that computes their KV also samples at each of their positions.
The samples count up to the first that differs from its draft. A sample is a function of the
distribution and of ``uniform(seed, index)``, so the text is the one sampled token by token, greedy
or not. (Leviathan et al. 2023 accept a draft with probability p / q. A drafter that proposes one
token has q = 1: its draft is accepted with probability p, with the very same random number.)

    grammar   forced text whose tokens are not certain, for every constrained request
    ngram     the tokens that followed an earlier occurrence of the last tokens (``lookup``)
    draft     tokens sampled by a smaller model (``draft_model``)

The last two are speculation: the request chooses one, or uses the server's default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sglang.srt.config.sections import MAX_DRAFTS
from sglang.srt.core.batch import Drawn, Row, RowOutput
from sglang.srt.core.messages import Generate
from sglang.srt.core.request import Request
from sglang.srt.engine.lookup import LookupDrafter
from sglang.srt.engine.masks import GrammarBudget
from sglang.srt.memory.store import Store

COSTLY = 2e-3  # processor seconds of a grammar's step; a request above that gets no drafts
GRAMMAR_DRAFTS = 16  # most drafts of a request from its grammar in a pass
LONGEST_PAUSE = 64  # most tokens generated without drafts, after drafts that were all rejected


class Drafter(Protocol):
    """Proposes the next tokens of requests. Drafts change the speed, never the generated text."""

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Return the drafts of each request. ``wanted``: pairs (request, most drafts). All tokens
        of the requests but the last must have KV."""
        ...

    def forget(self, request: Request) -> None:
        """Forget a request that has ended."""
        ...


class GrammarDrafter:
    """Proposes forced text whose tokens are not certain, because later text may merge with it."""

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        budget = GrammarBudget()
        return [self._draft(request, limit, budget) for request, limit in wanted]

    def _draft(self, request: Request, limit: int, budget: GrammarBudget) -> list[int]:
        matcher = request.generation.matcher
        if matcher is None or not budget.open:
            return []
        try:
            with budget.charge(request):
                return matcher.draft(limit)
        except Exception:
            return []  # the next mask raises the error again, and ends the request

    def forget(self, request: Request) -> None:
        pass


class Pace:
    """Draft length of one request and source: ``MAX_DRAFTS`` or 0. After rejected drafts there is
    a pause, which doubles each time that every draft was rejected."""

    def __init__(self) -> None:
        self._misses = self._resume = 0

    def size(self, generated: int) -> int:
        """Return the draft length for a request with ``generated`` tokens."""
        return MAX_DRAFTS if generated >= self._resume else 0

    def note(self, count: int, accepted: int, generated: int) -> None:
        """Note that ``accepted`` of ``count`` drafts were sampled, and the request now has
        ``generated`` tokens."""
        self._misses = 0 if accepted else self._misses + 1
        if not accepted:
            self._resume = generated + min(1 << self._misses, LONGEST_PAUSE)


class AdaptivePace(Pace):
    """Adaptive draft length, for drafts that cost something: doubles when every draft was accepted,
    otherwise accepted + 1."""

    def __init__(self) -> None:
        super().__init__()
        self._size = 2

    def size(self, generated: int) -> int:
        return min(super().size(generated), self._size)

    def note(self, count: int, accepted: int, generated: int) -> None:
        super().note(count, accepted, generated)
        if accepted < count:
            self._size = accepted + 1
        elif count == self._size:  # no other limit reduced the number of drafts
            self._size = min(2 * count, MAX_DRAFTS)


@dataclass(slots=True)
class _Drafting:
    """State of one request: source of the drafts in its row in flight, and pace of each source."""

    source: str = ""
    paces: dict[str, Pace] = field(default_factory=dict)

    def pace(self, source: str) -> Pace:
        if source not in self.paces:
            self.paces[source] = AdaptivePace() if source == "draft" else Pace()
        return self.paces[source]


class Drafts:
    """All drafters, the choice between them and the draft lengths.

    Args:
        jumps: how forced text is generated (``GrammarConfig.jumps``). Drafts of grammars are a part
            of "exact"; a text that "string" may rewrite has no drafts at all.
        default: speculation of requests with "auto": "none", "ngram" or "draft".
        most: most drafts of a request in a pass.
        room: number of tokens that a pass computes in little more time than one token. Each running
            request uses one; speculation may use the rest. Beyond it, drafts cost full price.
        model: the drafter "draft"; None: "draft" is not available.
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
        self._drafting: dict[int, _Drafting] = {}  # by request id

    def sources(self, request: Request) -> list[str]:
        """Return the sources that may propose tokens for a request, in order of preference."""
        goal = request.spec.goal
        if not isinstance(goal, Generate):
            return []
        found = []
        if request.generation.matcher is not None:
            if self._jumps == "string":
                return []
            if self._jumps == "exact":
                found.append("grammar")
        requested = goal.sampling.speculation
        source = self._default if requested == "auto" else requested
        if source in self._drafters:
            found.append(source)
        return found

    def wanted(self, request: Request, running: int) -> bool:
        """Return whether the next pass, of ``running`` requests, may have drafts for this request.
        If so, the pass must wait for the request's sample in flight."""
        drafting = self._drafting.get(request.id)
        generated = len(request.generation.tokens) + request.pending
        return request.growth > 1 and any(
            drafting is None or drafting.pace(source).size(generated) > 0
            for source in self.sources(request)
            if source == "grammar" or running < self._room
        )

    def propose(self, requests: Sequence[Request], running: int) -> Mapping[int, list[int]]:
        """Return drafts by request id. The row also samples after the last draft.

        Args:
            requests: requests whose tokens all have KV but the last.
            running: number of requests in the pass.
        """
        found: dict[int, list[int]] = {}
        left = max(self._room - running, 0)
        for source, drafter in self._drafters.items():
            free = source == "grammar"  # grammars propose few drafts, and most are accepted
            wanted = self._wanted(source, [r for r in requests if r.id not in found])
            if not wanted or not (free or left):
                continue
            if source == "draft":  # the draft model's time limits the number, too
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
                    self._drafting[request.id].source = source
                    left -= 0 if free else len(found[request.id])
        return found

    def _wanted(self, source: str, requests: Sequence[Request]) -> list[tuple[Request, int]]:
        """Return the requests that may have drafts of a source, each with the draft length."""
        most = GRAMMAR_DRAFTS if source == "grammar" else self._most
        out = []
        for request in requests:
            generation = request.generation
            costly = generation.matcher is not None and request.scheduling.cost > COSTLY
            if source in self.sources(request) and not costly:
                drafting = self._drafting.setdefault(request.id, _Drafting())
                size = drafting.pace(source).size(len(generation.tokens))
                out.append((request, min(size, most, request.growth - 1)))
        return [(request, size) for request, size in out if size > 0]

    def verify(self, store: Store, request: Request, row: Row, out: RowOutput) -> list[Drawn]:
        """Return the valid samples: those equal to their drafts, then one more. Remove the rejected
        drafts from the context. The collector counts accepted drafts, since the text may end before
        the last of them."""
        if not out.checks:  # there were no drafts, or the row failed as a whole
            return [out]
        count = len(row.checks)
        drafts = row.tokens[len(row.tokens) - count :]
        kept = 0
        while kept < count and out.checks[kept].token == drafts[kept]:
            kept += 1
        store.truncate(request.context, len(request.context.tokens) - count + kept)
        request.stats.drafted_tokens += count
        drafting = self._drafting[request.id]
        generated = len(request.generation.tokens) + kept + 1
        drafting.pace(drafting.source).note(count, kept, generated)
        return [*out.checks, out][: kept + 1]

    def forget(self, request: Request) -> None:
        """Forget a request that has ended."""
        if self._drafting.pop(request.id, None) is not None:
            for drafter in self._drafters.values():
                drafter.forget(request)
