"""CompiledGrammar and Matcher: the interface of every kind of constraint.

A CompiledGrammar is compiled once for a constraint and shared. A Matcher is the state of one
generation in it. A matcher's mask depends on the grammar and on the tokens it has advanced over
alone: not on drafts, on forced runs taken at once, or on earlier masks.
"""

from __future__ import annotations

from typing import Protocol

from sglang.srt.core.matcher import CompilerBusy, GrammarError, Matcher

__all__ = ["CompiledGrammar", "CompilerBusy", "GrammarError", "Matcher"]


class CompiledGrammar(Protocol):
    """Compiled, shared by all generations with the same constraint. ``matcher`` may be called from
    any thread; the matchers of one grammar are used by one thread at a time."""

    def matcher(self) -> Matcher: ...

    @property
    def path(self) -> str:
        """Implementation: "fsm", "trie", "llguidance" or "outlines"."""
        ...
