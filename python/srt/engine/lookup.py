"""Lookup: drafts from the context itself. The tokens that followed an earlier occurrence of the
last tokens are the draft (prompt lookup: Saxena 2023). This needs no model, and helps when a text
repeats its prompt or itself: editing, quoting, code, JSON.

Earlier occurrences are found as in LZ77. ``heads`` maps the hash of two neighbouring tokens to the
position where such a pair ended last; ``chain`` maps a position to the one where the same pair
ended before. Of the latest ``TRIED`` positions, the one with the longest common suffix is used. The
draft is at most as long as that suffix, if it is below ``LONGEST``: a short one may be chance.
The index takes eight bytes a token, for at most ``WINDOW`` tokens; each token costs the same time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sglang.srt.core.ints import Ints
from sglang.srt.core.request import Request
from sglang.srt.engine.masks import GrammarBudget

WINDOW = 1 << 15  # tokens, at most
TRIED = 24  # earlier positions that are compared
LEAST, LONGEST = 3, 16  # bounds of a common suffix in tokens: shorter ones are not used
ADDED = 4096  # most tokens a pass that are indexed: a long prompt is indexed in parts


class Lookup:
    """Index over the tokens of one context. Stale entries of a context that was cut or rewritten
    only make drafts worse. ``length``: most tokens that the context may have.
    """

    def __init__(self, length: int) -> None:
        size = 1 << min(max(length, 2) - 1, WINDOW - 1).bit_length()
        self._mask = size - 1
        self._heads = array("i", [-1]) * size
        self._chain = array("i", [-1]) * size
        self._next = 1  # position where the first pair that is not indexed ends

    def add(self, tokens: Ints, limit: int) -> int:
        """Index the new tokens except the last, at most ``limit`` of them; return how many."""
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
        """Return at most ``limit`` tokens that followed an earlier occurrence of the last tokens.
        They are repeated if they reach the end of the context. [] if there is no such occurrence,
        or the index does not have all tokens yet."""
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
        """Return the earlier position with the longest common suffix with position ``last``, and
        that suffix's length."""
        mask, chain = self._mask, self._chain
        best, length = -1, 1
        at = self._heads[(tokens[last - 1] * 40503 ^ tokens[last]) & mask]
        for _ in range(TRIED):
            if at < length or at <= last - mask or at >= last:
                break
            if tokens[at - length] == tokens[last - length]:  # else its suffix is no longer
                most = min(LONGEST, at + 1)
                same = 0
                while same < most and tokens[at - same] == tokens[last - same]:
                    same += 1
                if same > length:
                    best, length = at, same
                if same == LONGEST:
                    break
            before = chain[at & mask]
            if before >= at:  # a later position has overwritten the entry in the ring
                break
            at = before
        return best, length


class LookupDrafter:
    """The ``Drafter`` "ngram", with an index for each request."""

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
            if drafts and request.generation.matcher is not None:
                drafts = _affordable(request, drafts, budget)
            found.append(drafts)
        return found

    def forget(self, request: Request) -> None:
        self._lookups.pop(request.id, None)


def _affordable(request: Request, drafts: list[int], budget: GrammarBudget) -> list[int]:
    """Return the drafts that the request's grammar allows; [] if the budget is spent."""
    if not budget.open:
        return []
    with budget.charge(request):
        return allowed(request, drafts)


def allowed(request: Request, drafts: list[int]) -> list[int]:
    """Return the drafts before the first that the request's grammar does not allow. Later drafts
    would only waste time: they are never sampled."""
    assert request.generation.matcher is not None
    try:
        matcher = request.generation.matcher.fork()
        for index, token in enumerate(drafts):
            if not matcher.advance(token):
                return drafts[:index]
    except Exception:
        return []  # the next mask raises the error again, and ends the request
    return drafts
