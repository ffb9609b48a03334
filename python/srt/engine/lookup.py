"""Lookup: drafts out of the context itself. Where its last tokens stood before, what followed them
then is the guess (prompt lookup: Saxena 2023). It costs no model, and it pays where a text repeats
its prompt or itself: editing, quoting, code, JSON.

The last tokens are found as LZ77 finds them: ``heads`` has, by the hash of two neighbouring tokens,
where such a pair ended last, and ``chain``, by position, where it ended before that. Of the latest
``TRIED`` places the one with the longest common past is taken, and as many tokens are guessed as
are common: a long one is a copy under way, a short one chance. Eight bytes a token, no more than
``WINDOW`` tokens back; a token costs the same whatever stands before it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sglang.srt.core.ints import Ints
from sglang.srt.core.request import Request
from sglang.srt.engine.grammar_budget import GrammarBudget

WINDOW = 1 << 15  # tokens, at most
TRIED = 24  # earlier places that are compared
LEAST, LONGEST = 3, 16  # tokens of a past that counts, and of one that is as good as any
ADDED = 4096  # tokens a pass that enter the indices: a long prompt does so in parts


class Lookup:
    """Index over the tokens of one context, which grows; cut and rewritten ends do no harm.

    Args:
        length: tokens that the context may come to have.
    """

    def __init__(self, length: int) -> None:
        size = 1 << min(max(length, 2) - 1, WINDOW - 1).bit_length()
        self._mask = size - 1
        self._heads = array("i", [-1]) * size
        self._chain = array("i", [-1]) * size
        self._next = 1  # the first pair that is not in the index ends here

    def add(self, tokens: Ints, limit: int) -> int:
        """Index what is new but the last token, at most ``limit`` tokens; returns how many."""
        start, end = max(self._next, len(tokens) - 1 - self._mask), len(tokens) - 1
        end = min(end, start + limit)
        if start >= end:
            return 0
        mask, heads, chain = self._mask, self._heads, self._chain
        before = tokens[start - 1]
        for at, token in enumerate(tokens[start:end], start):
            key = (before * 40503 ^ token) & mask
            chain[at & mask] = heads[key]
            heads[key] = at
            before = token
        self._next = end
        return end - start

    def find(self, tokens: Ints, limit: int) -> list[int]:
        """What followed the last tokens before, at most ``limit`` of it; a run that reaches the end
        goes on with itself. [] where they are new, or not all is indexed yet."""
        last = len(tokens) - 1
        if last < LEAST or self._next < last:
            return []
        best, length = self._longest(tokens, last)
        if length < LEAST:
            return []
        if length < LONGEST:
            limit = min(limit, length)
        found = tokens[best + 1 : best + 1 + limit].tolist()
        period = last - best
        while len(found) < limit:
            found.append(found[-period])
        return found

    def _longest(self, tokens: Ints, last: int) -> tuple[int, int]:
        """Where the past is the longest that is also that of ``last``, and how long it is."""
        mask, chain = self._mask, self._chain
        best, length = -1, 1
        at = self._heads[(tokens[last - 1] * 40503 ^ tokens[last]) & mask]
        for _ in range(TRIED):
            if at < length or at <= last - mask or at >= last:
                break
            if tokens[at - length] == tokens[last - length]:  # else it is no longer one
                most = min(LONGEST, at + 1)
                same = 0
                while same < most and tokens[at - same] == tokens[last - same]:
                    same += 1
                if same > length:
                    best, length = at, same
                if same == LONGEST:
                    break
            before = chain[at & mask]
            if before >= at:  # its place in the ring has been taken
                break
            at = before
        return best, length


class LookupDrafter:
    """A ``Drafter`` that has an index for each request under way."""

    def __init__(self) -> None:
        self._lookups: dict[int, Lookup] = {}

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        left, found, budget = ADDED, [], GrammarBudget()
        for request, limit in wanted:
            tokens = request.context.tokens
            lookup = self._lookups.get(request.id)
            if lookup is None:
                lookup = self._lookups[request.id] = Lookup(len(tokens) + request.growth)
            left -= lookup.add(tokens, left)
            drafts = lookup.find(tokens, limit)
            if drafts and request.matcher is not None:
                drafts = _affordable(request, drafts, budget)
            found.append(drafts)
        return found

    def forget(self, request: Request) -> None:
        self._lookups.pop(request.id, None)


def _affordable(request: Request, drafts: list[int], budget: GrammarBudget) -> list[int]:
    """The drafts that the request's grammar allows; none where the budget is spent."""
    if not budget.open:
        return []
    with budget.charge(request):
        return allowed(request, drafts)


def allowed(request: Request, drafts: list[int]) -> list[int]:
    """The drafts up to the first that the request's grammar does not allow. The others would do no
    harm: they are never sampled."""
    assert request.matcher is not None
    try:
        matcher = request.matcher.fork()
        for place, token in enumerate(drafts):
            if not matcher.advance(token):
                return drafts[:place]
    except Exception:
        return []  # the mask that is asked for next says why
    return drafts
