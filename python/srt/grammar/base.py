"""Grammar and Matcher: the one interface of every kind of constraint.

A Grammar is compiled once for a constraint and shared; a Matcher is where one generation stands in
it. A matcher's mask is a function of the grammar and of the tokens it has advanced over, and of
nothing else: not of drafts, of forced runs taken at once, or of what was masked before.
"""

from __future__ import annotations

from typing import Protocol

from sglang.srt.core.matcher import CompilerBusy, GrammarError, Matcher

__all__ = ["CompilerBusy", "Grammar", "GrammarError", "Matcher"]


class Grammar(Protocol):
    """Compiled, shared by all generations with the same constraint. ``matcher`` may be called from
    any thread; the matchers of one grammar are used by one thread at a time."""

    def matcher(self) -> Matcher: ...

    @property
    def path(self) -> str:
        """What carries it: "fsm", "trie", "llguidance" or "outlines"."""
        ...
