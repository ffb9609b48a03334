"""Alternating: the subset construction with assertions and look-aheads.

A *thread* is a state of the Nfa and a set of *obligations*: what must (not) match from an earlier
position on, each a configuration that goes along with the text. A configuration is a set of
threads, any one of which may win. This is the usual way to make an alternating automaton
deterministic; nothing in it depends on where in the pattern a look-ahead stands.
"""

from __future__ import annotations

from sglang.srt.grammar.regex.assertion_context import OUTSIDE, AssertionContext, Place
from sglang.srt.grammar.regex.budget import Meter
from sglang.srt.grammar.regex.dfa import Atoms, Dfa, too_many
from sglang.srt.grammar.regex.nfa import ACCEPT, AHEAD, ASSERT, BEHIND, CHAR, Nfa
from sglang.srt.grammar.regex.partition import Partition

Obligations = frozenset[tuple[int, int]]  # (negative, configuration)
Thread = tuple[int, Obligations]
NONE: Obligations = frozenset()
FAILED, WON = 0, 1  # configurations: no thread; one that accepts whatever follows


class Alternating:
    """Configurations by number, and what becomes of them."""

    def __init__(
        self, nfa: Nfa, context: AssertionContext, atoms: Atoms, classes: int, meter: Meter
    ) -> None:
        self.nfa = nfa
        self.context = context
        self.atoms = atoms
        self.classes = classes
        self.meter = meter
        self.configs: list[frozenset[Thread]] = [frozenset(), frozenset({(nfa.always, NONE)})]
        self._numbers = {config: number for number, config in enumerate(self.configs)}
        self._needs: dict[int, tuple[bool, int]] = {FAILED: (False, 0), WON: (False, 0)}
        self._rows: dict[tuple[int, Place], list[int]] = {}

    def config(self, threads: set[Thread]) -> int:
        """The number of a configuration. A thread that owes more than another is left out."""
        if (self.nfa.always, NONE) in threads:
            return WON
        owing: dict[int, list[Obligations]] = {}
        for state, obligations in threads:
            if obligations:
                owing.setdefault(state, []).append(obligations)
        for state, lists in owing.items():
            if (state, NONE) in threads:
                lists.append(NONE)
            if len(lists) > 1:
                self.meter.spend(len(lists) ** 2)
                for one in lists:
                    if any(other < one for other in lists):
                        threads.discard((state, one))
        frozen = frozenset(threads)
        number = self._numbers.get(frozen)
        if number is None:
            number = self._numbers[frozen] = len(self.configs)
            self.configs.append(frozen)
            self.meter.spend(16 * len(frozen) + 16)
        return number

    def needs(self, number: int) -> tuple[bool, int]:
        """Facts that a configuration needs of its ``Place``: see ``AssertionContext.needs``."""
        if number not in self._needs:
            before, behinds = False, 0
            for state, obligations in self.configs[number]:
                asks = [self.context.needs(state), *(self.needs(one) for _, one in obligations)]
                self.meter.spend(len(asks))
                for early, bits in asks:
                    before, behinds = before or early, behinds | bits
            self._needs[number] = before, behinds
        return self._needs[number]

    def reach(
        self, number: int, place: Place, after: int
    ) -> tuple[list[tuple[int, int, Obligations]], list[Obligations]]:
        """Transitions (set, next, obligations) of the threads, the next character being of kind
        ``after``; and what those owe that accept here."""
        moves: list[tuple[int, int, Obligations]] = []
        ends: list[Obligations] = []
        stack = list(self.configs[number])
        seen = set(stack)
        while stack:
            here, owed = stack.pop()
            state = self.nfa.states[here]
            self.meter.spend(4)
            kind, ways = state[0], state[1:]
            if kind == CHAR:
                moves.append((state[1], state[2], owed))
                continue
            if kind == ACCEPT:
                ends.append(owed)
                continue
            if kind == ASSERT:
                ways = state[2:] if self.context.holds(state[1], place[0], after) else ()
            elif kind == BEHIND:
                ways = state[3:] if self.context.held(state[2], place) != bool(state[1]) else ()
            elif kind == AHEAD:
                ways = state[3:]
                owed |= {(state[1], self.config({(state[2], NONE)}))}
            self.meter.spend(len(ways))
            for target in ways:
                thread = target, owed
                if thread not in seen:
                    seen.add(thread)
                    stack.append(thread)
        return moves, ends

    def ends(self, number: int, place: Place) -> bool:
        """Whether the text may end here."""
        return any(
            all(self.ends(one, place) != bool(negative) for negative, one in owed)
            for owed in self.reach(number, place, OUTSIDE)[1]
        )

    def row(self, number: int, place: Place) -> list[int]:
        """The configuration after a character of each class."""
        key = number, place
        if key in self._rows:
            return self._rows[key]
        found = [FAILED] * self.classes
        for kind, classes in enumerate(self.context.kinds):
            threads: dict[int, set[Thread]] = {}
            for members, target, owed in self.reach(number, place, kind)[0]:
                threads.setdefault(members, set()).add((target, owed))
            for labels, holders in self.atoms.split(tuple(sorted(threads))):
                those = set().union(*(threads[members] for members in holders))
                free = not any(owed for _, owed in those)
                same = self.config(set(those)) if free else FAILED
                for label in labels:
                    if label in classes:
                        found[label] = same if free else self._owing(those, place, label)
                self.meter.spend(4 * len(those) + len(labels))
        self._rows[key] = found
        return found

    def _owing(self, threads: set[Thread], place: Place, label: int) -> int:
        """The configuration of ``threads`` once their obligations have read a character."""
        found: set[Thread] = set()
        for target, owed in threads:
            left = []
            for negative, number in owed:
                self.meter.spend(8)
                after = self.row(number, place)[label]
                if after == (WON if negative else FAILED):
                    break
                if after != (FAILED if negative else WON):
                    left.append((negative, after))
            else:
                found.add((target, frozenset(left)))
        return self.config(found)


def determinize(
    nfa: Nfa, start: int, context: AssertionContext, parts: Partition, meter: Meter
) -> Dfa:
    """Return the Dfa of an Nfa with assertions. Raises BeyondBudget."""
    machine = Alternating(nfa, context, Atoms(parts), parts.count, meter)
    first = machine.config({(start, NONE)}), context.start
    dfa = Dfa()
    numbers = {first: 0}
    waiting = [first]
    while len(dfa.rows) < len(waiting):
        config, place = waiting[len(dfa.rows)]
        groups: dict[int, list[int]] = {}
        for label, after in enumerate(machine.row(config, place)):
            if after == FAILED:
                continue
            key = after, context.step(place, label, *machine.needs(after))
            if key not in numbers:
                if len(waiting) >= meter.budget.dfa:
                    raise too_many(meter)
                numbers[key] = len(waiting)
                waiting.append(key)
            groups.setdefault(numbers[key], []).append(label)
        meter.spend(parts.count * 4 + 16)
        dfa.final.append(machine.ends(config, place))
        dfa.rows.append([(tuple(labels), after) for after, labels in groups.items()])
    return dfa
