"""Dfa: the subset construction, for patterns whose states depend only on the next character."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang.srt.grammar.regex.budget import BeyondBudget, Meter
from sglang.srt.grammar.regex.nfa import ACCEPT, CHAR, SPLIT, Nfa
from sglang.srt.grammar.regex.partition import Partition

Classes = tuple[int, ...]


@dataclass
class Dfa:
    """Automaton with start state 0. ``rows``: by state, pairs (classes, state after any of these);
    a class occurs at most once in a row."""

    rows: list[list[tuple[Classes, int]]] = field(default_factory=list)
    final: list[bool] = field(default_factory=list)


def too_many(meter: Meter) -> BeyondBudget:
    return BeyondBudget(
        f"regex needs more than {meter.budget.dfa} states; make its repetitions smaller"
    )


def follow(nfa: Nfa, meter: Meter, start: int) -> list[tuple[int, int]]:
    """Return transitions (set, next) of CHAR states reached without reading; (-1, -1): ACCEPT."""
    found = []
    seen = {start}
    stack = [start]
    while stack:
        state = nfa.states[stack.pop()]
        if state[0] == CHAR:
            found.append((state[1], state[2]))
        elif state[0] == ACCEPT:
            found.append((-1, -1))
        else:
            assert state[0] == SPLIT
            meter.spend(len(state))
            fresh = [target for target in state[1:] if target not in seen]
            seen.update(fresh)
            stack += fresh
    meter.spend(len(found) + 1)
    return found


class Atoms:
    """Groups the classes of several sets: classes in the same sets form a group."""

    def __init__(self, parts: Partition) -> None:
        self.parts = parts
        self._known: dict[tuple[int, ...], list[tuple[Classes, tuple[int, ...]]]] = {}

    def split(self, sets: tuple[int, ...]) -> list[tuple[Classes, tuple[int, ...]]]:
        """Return pairs (classes, the sets that contain them). ``sets``: ascending set numbers."""
        if sets not in self._known:
            holders: dict[int, list[int]] = {}
            for number in sets:
                for label in self.parts.members[number]:
                    holders.setdefault(label, []).append(number)
            groups: dict[tuple[int, ...], list[int]] = {}
            for label, numbers in holders.items():
                groups.setdefault(tuple(numbers), []).append(label)
            self._known[sets] = [(tuple(labels), key) for key, labels in groups.items()]
        return self._known[sets]


def determinize(nfa: Nfa, start: int, parts: Partition, meter: Meter) -> Dfa:
    """Return the Dfa of an Nfa without assertions. Raises BeyondBudget."""
    dfa = Dfa()
    atoms = Atoms(parts)
    follows: dict[int, list[tuple[int, int]]] = {}
    numbers = {frozenset((start,)): 0}
    waiting = [frozenset((start,))]
    while len(dfa.rows) < len(waiting):
        moves: dict[int, set[int]] = {}
        for state in waiting[len(dfa.rows)]:
            pairs = follows.get(state)
            if pairs is None:
                pairs = follows[state] = follow(nfa, meter, state)
            meter.spend(len(pairs) + 1)
            for number, target in pairs:
                if number in moves:
                    moves[number].add(target)
                else:
                    moves[number] = {target}
        dfa.final.append(moves.pop(-1, None) is not None)
        row = []
        for labels, holders in atoms.split(tuple(sorted(moves))):
            if len(holders) == 1:
                targets = frozenset(moves[holders[0]])
            else:
                targets = frozenset().union(*(moves[number] for number in holders))
            meter.spend(2 * len(targets) + len(holders) + 8)
            after = numbers.get(targets)
            if after is None:
                if len(waiting) >= meter.budget.dfa:
                    raise too_many(meter)
                after = numbers[targets] = len(waiting)
                waiting.append(targets)
            row.append((labels, after))
        dfa.rows.append(row)
    return dfa
