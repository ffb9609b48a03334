"""Minimisation: the smallest automaton with the language of a Dfa.

Classes that no state tells apart are merged. The texts of the language are listed where they are
few.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sglang.srt.grammar.character_dfa import DEAD, CharacterDfa, Int32Array
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.regex.budget import BeyondBudget, Budget, Meter
from sglang.srt.grammar.regex.charset import LIMIT
from sglang.srt.grammar.regex.dfa import Dfa
from sglang.srt.grammar.regex.partition import Partition

Arcs = list[list[tuple[int, int]]]  # (label, next) pairs by state


def live(dfa: Dfa) -> list[bool]:
    """Whether a final state can be reached, by state."""
    before: list[list[int]] = [[] for _ in dfa.rows]
    for state, row in enumerate(dfa.rows):
        for _, after in row:
            before[after].append(state)
    alive = list(dfa.final)
    stack = [state for state, final in enumerate(alive) if final]
    while stack:
        for state in before[stack.pop()]:
            if not alive[state]:
                alive[state] = True
                stack.append(state)
    return alive


def table(dfa: Dfa, alive: list[bool], classes: int) -> tuple[Int32Array, list[bool]]:
    """``next`` of the live states [states, classes], and which are final."""
    number, count = [DEAD] * len(alive), 0
    for state, lives in enumerate(alive):
        if lives:
            number[state] = count
            count += 1
    rows: list[int] = []
    columns: list[int] = []
    values: list[int] = []
    for state, row in enumerate(dfa.rows):
        if not alive[state]:
            continue
        for labels, after in row:
            if alive[after]:
                rows += [number[state]] * len(labels)
                columns += labels
                values += [number[after]] * len(labels)
    grid = np.full((count, classes), DEAD, dtype=np.int32)
    grid[rows, columns] = values
    return grid, [final for final, lives in zip(dfa.final, alive) if lives]


def merge_columns(grid: Int32Array) -> tuple[Int32Array, Int32Array]:
    """The distinct columns that lead anywhere, and of each old class its new one, or DEAD."""
    columns = np.ascontiguousarray(grid.T)
    known: dict[bytes, int] = {np.full(len(grid), DEAD, dtype=np.int32).tobytes(): DEAD}
    renamed = [known.setdefault(column.tobytes(), len(known) - 1) for column in columns]
    kept = [renamed.index(label) for label in range(len(known) - 1)]
    return np.ascontiguousarray(columns[kept].T), np.array(renamed, dtype=np.int32)


def predecessors(grid: Int32Array) -> list[list[int]]:
    """Distinct predecessors of each state."""
    count = len(grid)
    source, label = np.nonzero(grid != DEAD)
    pairs = np.unique(grid[source, label].astype(np.int64) * count + source)
    before: list[list[int]] = [[] for _ in range(count)]
    for target, state in zip((pairs // count).tolist(), (pairs % count).tolist()):
        before[target].append(state)
    return before


def levels(before: list[list[int]]) -> list[list[int]]:
    """States from which only finitely many texts are accepted, by the length of the longest."""
    left = [0] * len(before)  # successors whose height is not known yet
    for states in before:
        for state in states:
            left[state] += 1
    found: list[list[int]] = []
    level = [state for state, count in enumerate(left) if count == 0]
    while level:
        found.append(level)
        above = []
        for target in level:
            for state in before[target]:
                left[state] -= 1
                if left[state] == 0:
                    above.append(state)
        level = above
    return found


def blocks(grid: Int32Array, final: list[bool], meter: Meter) -> Int32Array:
    """Class of equal states, by state.

    States without a cycle ahead are equal where their rows are, once their successors have been
    numbered (Revuz, "Minimisation of acyclic deterministic automata in linear time"). The others
    are refined.
    """
    count = len(grid)
    before = predecessors(grid)
    colour = np.full(count + 1, -1, dtype=np.int32)  # the last one is that of DEAD
    known: dict[tuple[bool, bytes], int] = {}
    for level in levels(before):
        for state, row in zip(level, colour[grid[level]]):
            key = final[state], row.tobytes()
            colour[state] = known.setdefault(key, len(known))
    members: list[set[int]] = [set() for _ in known]
    dirty = set(np.flatnonzero(colour[:count] == -1).tolist())
    for wanted in (False, True):
        states = {state for state in dirty if final[state] == wanted}
        if states:
            colour[list(states)] = len(members)
            members.append(states)
    while dirty:
        meter.spend(len(dirty) * (8 + grid.shape[1] // 8) + 200)
        moved = refine(dirty, members, colour, grid)
        dirty = {state for target in moved for state in before[target]}
    return colour[:count]


def refine(
    dirty: set[int], members: list[set[int]], colour: Int32Array, grid: Int32Array
) -> list[int]:
    """One round of n-way partition refinement: only states with a successor that got a new number
    (``dirty``) are looked at, and the largest part of a class keeps its number (Jacobs and
    Wissmann, "Fast Coalgebraic Bisimilarity Minimization"). Changes ``members``, the states by
    number, and ``colour``. Returns the states with new numbers."""
    moved: list[int] = []
    known = len(members)
    order = sorted(dirty)
    groups: dict[int, dict[bytes, list[int]]] = {}
    for state, block, row in zip(order, colour[order].tolist(), colour[grid[order]]):
        groups.setdefault(block, {}).setdefault(row.tobytes(), []).append(state)
    for block, parts in groups.items():
        clean = len(members[block]) - sum(map(len, parts.values()))
        sign = b""
        if clean:  # all of them still have one sign
            one = next(state for state in members[block] if state not in dirty)
            sign = colour[grid[one]].tobytes()
            parts.setdefault(sign, [])
        sizes = {key: len(part) + clean * (key == sign) for key, part in parts.items()}
        kept = max(sizes, key=sizes.__getitem__)
        if clean and sign != kept:
            parts[sign] += members[block] - dirty
        del parts[kept]
        for part in parts.values():
            members[block].difference_update(part)
            members.append(set(part))
            moved += part
    for block in range(known, len(members)):
        colour[list(members[block])] = block
    return moved


def minimise(dfa: Dfa, parts: Partition, budget: Budget, meter: Meter) -> CharacterDfa:
    """Return the smallest automaton of the same language. Raises GrammarError where that language
    is empty, and BeyondBudget."""
    cells = len(dfa.rows) * max(parts.count, 1)
    if cells > budget.cells:
        raise BeyondBudget(
            f"regex needs {len(dfa.rows)} states with {parts.count} classes of characters, "
            f"{cells} cells; at most {budget.cells}"
        )
    alive = live(dfa)
    if not alive[0]:
        raise GrammarError("regex matches nothing: no text satisfies it; loosen the pattern")
    grid, final = table(dfa, alive, parts.count)
    grid, renamed = merge_columns(grid)
    colour = blocks(grid, final, meter)
    rank: dict[int, int] = {}  # in the order of their first states, so the start is 0
    for block in colour.tolist():
        rank.setdefault(block, len(rank))
    order = np.full(len(rank) + 1, DEAD, dtype=np.int32)
    heads = np.unique(colour, return_index=True)[1]
    for block, number in rank.items():
        order[block] = number
    heads = np.array(sorted(heads.tolist()), dtype=np.int64)
    chosen = grid[heads]
    merged = np.where(chosen == DEAD, DEAD, order[colour[chosen]]).astype(np.int32)
    merged, again = merge_columns(merged)
    renamed = np.where(renamed == DEAD, DEAD, np.append(again, DEAD)[renamed]).astype(np.int32)
    labels = np.where(parts.labels == DEAD, DEAD, np.append(renamed, DEAD)[parts.labels])
    starts = np.flatnonzero(np.append(True, labels[1:] != labels[:-1]))
    automaton = CharacterDfa(
        parts.edges[starts].astype(np.int32),
        labels[starts].astype(np.int32),
        merged,
        np.array(final, dtype=np.bool_)[heads],
    )
    return replace(automaton, strings=strings(automaton, budget))


def _topological_order(arcs: Arcs) -> list[int] | None:
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
    """All texts of an automaton, sorted; None where they are infinitely many, or exceed the
    budget."""
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
    order = _topological_order(arcs)
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
