"""Drafts: tokens guessed ahead of the draw, and their verification.

A drafter proposes; the pass that computes the drafts' KV also draws at each of their positions; the
draws count up to the first that differs from its draft. A draw is a function of the distribution
and of ``uniform(seed, index)``, so the text is the one that would be drawn token by token, greedy
or sampled. (Leviathan et al. 2023 accept a draft with probability p / q; a draft that is certain of
itself, q = 1, is here accepted with probability p too, with the very same random number.)
"""

from __future__ import annotations

from typing import Protocol

from srt.core.batch import Drawn, Row, RowOutput
from srt.core.messages import Generate
from srt.core.request import Request
from srt.memory.store import Store

MAX_DRAFTS = 16  # a pass
TRIAL = 16  # drafts after which it is asked whether they pay
LEAST = 0.3  # share of accepted drafts from which on they do


class Drafter(Protocol):
    """Guesses what follows. The guess decides how fast a text is written, never which."""

    def propose(self, request: Request, limit: int) -> list[int]:
        """At most ``limit`` tokens, each allowed by the request's matcher after those before."""
        ...


class GrammarDrafter:
    """Forced text whose tokens are not certain, because the text behind it may merge with it."""

    def propose(self, request: Request, limit: int) -> list[int]:
        try:
            return request.matcher.draft(limit) if request.matcher is not None else []
        except Exception:
            return []  # the mask that is asked for next says why


def propose(drafter: Drafter, request: Request) -> list[int]:
    """Drafts for a request whose work is all planned. A draw always follows the last."""
    if not isinstance(request.goal, Generate):
        return []
    if request.drafted >= TRIAL and request.accepted < LEAST * request.drafted:
        return []
    return drafter.propose(request, min(MAX_DRAFTS, request.growth - 1))


def verify(store: Store, request: Request, row: Row, out: RowOutput) -> list[Drawn]:
    """The draws that count, all but the last equal to their drafts. The context keeps those."""
    if not out.checks:  # there were no drafts, or the row failed as a whole
        return [out]
    count = len(row.checks)
    drafts = row.tokens[len(row.tokens) - count :]
    kept = 0
    while kept < count and out.checks[kept].token == drafts[kept]:
        kept += 1
    store.truncate(request.context, len(request.context.tokens) - count + kept)
    request.drafted += count
    request.accepted += kept
    return [*out.checks, out][: kept + 1]
