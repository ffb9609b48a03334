"""build: a plan and a vocabulary become a Grammar."""

from __future__ import annotations

from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.automaton import Automaton
from sglang.srt.grammar.base import Grammar, GrammarError
from sglang.srt.grammar.plan import Plan


def build(plan: Plan, vocabulary: Vocabulary, canonical: bool = True) -> Grammar:
    """What ``plan.path`` names, with the first mask made, so that no step has to wait for it.

    Args:
        canonical: masks allow only tokens of the canonical tokenisation of some legal text, where
            the path can tell.

    Raises GrammarError for a plan that is an error, and where no token may begin a text.
    """
    if plan.error:
        raise GrammarError(plan.error)
    grammar = _grammar(plan, vocabulary, canonical)
    if not any(grammar.matcher().mask()):
        raise GrammarError("no text satisfies the constraint: no token may begin it.")
    return grammar


def warm(vocabulary: Vocabulary) -> None:
    """Make what all grammars of a vocabulary share."""
    from sglang.srt.grammar.fsm import TokenTable
    from sglang.srt.grammar.guidance.tokens import TOKENIZERS

    TokenTable.of(vocabulary)
    TOKENIZERS.get(vocabulary)


def _grammar(plan: Plan, vocabulary: Vocabulary, canonical: bool) -> Grammar:
    if plan.path == "fsm":
        from sglang.srt.grammar.fsm import FsmGrammar

        return FsmGrammar(Automaton.unpack(plan.data), vocabulary, canonical)
    if plan.path == "trie":
        from sglang.srt.grammar.fsm import ChoicesGrammar

        return ChoicesGrammar(plan.strings, vocabulary, canonical)
    if plan.path == "llguidance":
        from sglang.srt.grammar.guidance import GuidanceGrammar
        from sglang.srt.grammar.guidance.checking import RULES, SCHEMA

        step = SCHEMA if plan.schema else RULES
        return GuidanceGrammar(plan.text, vocabulary, canonical, step)
    if plan.path == "outlines":
        from sglang.srt.grammar.outlines import OutlinesGrammar

        return OutlinesGrammar(plan.text, vocabulary)
    raise GrammarError(f"a plan has no path {plan.path!r}.")
