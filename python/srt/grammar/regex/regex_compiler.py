"""Compilation of a pattern to a CharacterDfa.

    text -> tree (parser) -> tree (simplify) -> Nfa -> Dfa over classes of characters -> minimal

The automaton accepts exactly the valid Unicode texts that ``re.fullmatch`` accepts. A feature that
is not supported exactly raises BeyondBudget.
"""

from __future__ import annotations

from sglang.srt.grammar.character_dfa import CharacterDfa
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.regex import alternating
from sglang.srt.grammar.regex.assertion_context import AssertionContext, asked
from sglang.srt.grammar.regex.budget import Budget, Meter
from sglang.srt.grammar.regex.dfa import determinize
from sglang.srt.grammar.regex.minimal import minimise
from sglang.srt.grammar.regex.nfa import Nfa
from sglang.srt.grammar.regex.parser import parse
from sglang.srt.grammar.regex.partition import partition
from sglang.srt.grammar.regex.simplify import ENDS, STARTS, simplify, trim
from sglang.srt.grammar.regex.tree import Node

DEFAULT = Budget()
FRONTS = ("own", "interegular")


def compile_regex(pattern: str, budget: Budget = DEFAULT, front: str = "own") -> CharacterDfa:
    """Compile a pattern. ``front``: parser: "own", or "interegular" (see ``interegular_front``).

    Raises InvalidPattern for an invalid pattern, BeyondBudget for one that is too large or not
    supported, GrammarError if no text matches.
    """
    if front not in FRONTS:
        raise GrammarError(f"front {front!r} is unknown; use one of {', '.join(FRONTS)}")
    tree = simplify(parse(pattern, budget))
    if front == "interegular":
        from sglang.srt.grammar.regex.interegular_front import interegular

        dfa, parts = interegular(pattern, tree, budget)
        return minimise(dfa, parts, budget, Meter(budget))
    tree = trim(trim(tree, STARTS, last=False), ENDS, last=True)
    return _automaton(tree, budget)


def _automaton(tree: Node, budget: Budget) -> CharacterDfa:
    meter = Meter(budget)
    nfa = Nfa(meter)
    start = nfa.add(tree, nfa.accept)
    if nfa.plain:
        parts = partition(nfa.sets)
        dfa = determinize(nfa, start, parts, meter)
    else:
        questions = asked(nfa)
        parts = partition(nfa.sets)
        context = AssertionContext(nfa, questions, parts, meter)
        dfa = alternating.determinize(nfa, start, context, parts, meter)
    return minimise(dfa, parts, budget, meter)
