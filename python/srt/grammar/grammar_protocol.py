"""CompiledGrammar and Matcher: the interface of every kind of constraint.

A CompiledGrammar is compiled once per constraint and shared. A Matcher is the state of one
generation in a grammar. Its mask depends only on the grammar and on the tokens that it has advanced
over, not on drafts, on the use of forced tokens, or on earlier masks.
"""

from __future__ import annotations

from typing import Protocol

from sglang.srt.core.matcher import CompilerBusy, GrammarError, Matcher

__all__ = ["CompiledGrammar", "CompilerBusy", "GrammarError", "Matcher"]


class CompiledGrammar(Protocol):
    """A compiled constraint, shared by all generations with the same constraint. Any thread may
    call ``matcher``; only one thread at a time may use the matchers of a grammar."""

    def matcher(self) -> Matcher: ...

    @property
    def path(self) -> str:
        """Implementation: "fsm", "trie", "llguidance" or "outlines"."""
        ...
