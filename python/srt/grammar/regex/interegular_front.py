"""interegular as another front end: its parser and its automaton, our classes and minimisation.

It differs from ``re``: ``\\d``, ``\\w`` and ``\\s`` are ASCII sets whatever the flags, and
IGNORECASE adds ``str.lower`` and ``str.upper`` of a character only. What it would read otherwise
than ``re`` in more than that is refused: assertions, look-arounds, a class that begins with ``]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

from sglang.srt.grammar.regex.budget import BeyondBudget, Budget, Meter
from sglang.srt.grammar.regex.charset import CharSet, single
from sglang.srt.grammar.regex.dfa import Dfa, determinize
from sglang.srt.grammar.regex.nfa import Nfa
from sglang.srt.grammar.regex.partition import Partition, partition
from sglang.srt.grammar.regex.simplify import plain
from sglang.srt.grammar.regex.tree import Node

CALLS = 3_000_000  # function calls, Python's and C's: about a second
STATES = 1000  # states of our own automaton; interegular compares each new state with all before


def interegular(pattern: str, tree: Node, budget: Budget) -> tuple[Dfa, Partition]:
    """Compile a pattern. ``tree``: its syntax tree, by our own parser. Raises BeyondBudget."""
    if not plain(tree):
        raise _refusal("assertions and look-arounds are not supported")
    if "[]" in pattern or "[^]" in pattern:
        raise _refusal("a class cannot begin with ]; write \\]")
    meter = Meter(replace(budget, nfa=STATES, dfa=STATES))
    nfa = Nfa(meter)
    determinize(nfa, nfa.add(tree, nfa.accept), partition(nfa.sets), meter)
    import interegular as library

    def work() -> Any:
        return library.parse_pattern(pattern).to_fsm(prefix_postfix=(0, 0))

    try:
        machine = _limited(work)
    except BeyondBudget:
        raise
    except Exception as error:  # unknown syntax raises any exception
        raise _refusal(f"not understood ({type(error).__name__}: {error})") from None
    return _converted(machine)


def _refusal(why: str) -> BeyondBudget:
    return BeyondBudget(f"regex: interegular: {why}; use --grammar-backend fsm")


def _limited(work: Callable[[], Any]) -> Any:
    """The result of ``work``, which may make ``CALLS`` calls; counted by the profiling hook."""
    left = CALLS

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            sys.setprofile(None)
            raise _refusal(f"takes more than {CALLS} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        return work()
    finally:
        sys.setprofile(before)


def _converted(machine: Any) -> tuple[Dfa, Partition]:
    """interegular's automaton: a symbol is a character, or stands for all that are not named."""
    symbols = {key: set(chars) for key, chars in machine.alphabet.by_transition.items()}
    named = {char for chars in symbols.values() for char in chars if isinstance(char, str)}
    if any(len(char) != 1 for char in named):
        raise _refusal("IGNORECASE on a character whose other case is several")
    keys = list(symbols)
    sets = []
    for key in keys:
        chars = symbols[key]
        points = CharSet.union([single(ord(char)) for char in chars & named])
        if chars - named:
            others = CharSet.of((ord(char), ord(char) + 1) for char in named - chars)
            points = others.complement()
        sets.append(points)
    parts = partition(sets)
    labels = dict(zip(keys, parts.members))
    states = [machine.initial, *(state for state in machine.map if state != machine.initial)]
    states += [state for state in machine.states if state not in machine.map]
    numbers = {state: number for number, state in enumerate(dict.fromkeys(states))}
    dfa = Dfa()
    for state in numbers:
        row = machine.map.get(state, {})
        dfa.rows.append([(labels[key], numbers[after]) for key, after in row.items()])
        dfa.final.append(state in machine.finals)
    return dfa, parts
