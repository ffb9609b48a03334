"""All texts of an automaton, where they are few."""

from __future__ import annotations

import numpy as np
from sglang.srt.grammar.character_dfa import DEAD, CharacterDfa
from sglang.srt.grammar.regex.budget import Budget
from sglang.srt.grammar.regex.charset import LIMIT

Arcs = list[list[tuple[int, int]]]  # of each state: (label, next)


def _order(arcs: Arcs) -> list[int] | None:
    """The states, each before its successors; None where there is a cycle."""
    indegree = [0] * len(arcs)
    for row in arcs:
        for _, after in row:
            indegree[after] += 1
    order = [state for state, count in enumerate(indegree) if count == 0]
    for state in order:  # grows
        for _, after in arcs[state]:
            indegree[after] -= 1
            if indegree[after] == 0:
                order.append(after)
    return order if len(order) == len(arcs) else None


def strings(automaton: CharacterDfa, budget: Budget) -> tuple[str, ...] | None:
    """Sorted; None where they are infinitely many, or more than the budget lists."""
    states = automaton.states
    if not bool((automaton.next == DEAD).all(axis=1).any()):
        return None  # no state without a transition: there is a cycle
    ranges: list[list[tuple[int, int]]] = [[] for _ in range(automaton.classes)]
    ends = [*automaton.edges[1:].tolist(), LIMIT]
    for begin, end, label in zip(automaton.edges.tolist(), ends, automaton.labels.tolist()):
        if label != DEAD:
            ranges[label].append((begin, end))
    sizes = [sum(end - begin for begin, end in pairs) for pairs in ranges]
    arcs: Arcs = [[] for _ in range(states)]
    where = np.nonzero(automaton.next != DEAD)
    found = zip(where[0].tolist(), where[1].tolist(), automaton.next[where].tolist())
    for state, label, after in found:
        arcs[state].append((label, after))
    order = _order(arcs)
    if order is None:
        return None
    count = [0] * states
    length = [0] * states  # characters of all texts from here
    for state in reversed(order):
        count[state] = int(automaton.final[state]) + sum(
            sizes[label] * count[after] for label, after in arcs[state]
        )
        length[state] = sum(
            sizes[label] * (count[after] + length[after]) for label, after in arcs[state]
        )
        if count[state] > budget.strings or length[state] > budget.string_bytes:
            return None
    chars = [[chr(point) for pair in pairs for point in range(*pair)] for pairs in ranges]
    texts: list[list[str]] = [[] for _ in range(states)]
    for state in reversed(order):
        if automaton.final[state]:
            texts[state].append("")
        for label, after in arcs[state]:
            texts[state] += [char + text for char in chars[label] for text in texts[after]]
    if sum(len(text.encode()) for text in texts[0]) > budget.string_bytes:
        return None
    return tuple(sorted(texts[0]))
