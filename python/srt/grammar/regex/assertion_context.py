"""AssertionContext: facts about a position of the text that assertions depend on.

A ``Place`` is the kind of the character before a position, and the state of each look-behind there.
A *kind* says whether a character is a newline, and whether it belongs to a word.
"""

from __future__ import annotations

from sglang.srt.grammar.regex.budget import Meter
from sglang.srt.grammar.regex.charset import NEWLINE, shorthand
from sglang.srt.grammar.regex.dfa import determinize
from sglang.srt.grammar.regex.nfa import AHEAD, ASSERT, BEHIND, CHAR, Nfa
from sglang.srt.grammar.regex.partition import Partition

OUTSIDE = -1  # the kind before the first character and after the last
ANY = -2  # the kind before, where nothing asks for it
Place = tuple[int, tuple[int, ...]]


def asked(nfa: Nfa) -> list[int]:
    """Sets that a kind tells apart, by number; they are added to the automaton's."""
    found = []
    for kind, ascii_only in nfa.conditions:
        if kind.startswith("line"):
            found.append(nfa.set_number(NEWLINE))
        elif kind.endswith("edge"):
            found.append(nfa.set_number(shorthand("w", ascii_only)))
    return list(dict.fromkeys(found))


class AssertionContext:
    """Kinds of characters, which decide whether an assertion holds between two of them.

    Attributes:
        kind: the kind of each class of characters.
        kinds: the classes of each kind except OUTSIDE.
    """

    def __init__(self, nfa: Nfa, questions: list[int], parts: Partition, meter: Meter) -> None:
        self.nfa = nfa
        inside = [frozenset(parts.members[number]) for number in questions]
        known: dict[tuple[bool, ...], int] = {}
        self.kind = [
            known.setdefault(tuple(label in one for one in inside), len(known))
            for label in range(parts.count)
        ]
        self.kinds = [
            frozenset(label for label, kind in enumerate(self.kind) if kind == wanted)
            for wanted in range(len(known))
        ]
        answers = [dict(zip(questions, answer)) for answer in known]
        self._newline = self._said(answers, NEWLINE)
        self._word = {
            ascii_only: self._said(answers, shorthand("w", ascii_only))
            for kind, ascii_only in nfa.conditions
            if kind.endswith("edge")
        }
        self._behinds: list[list[list[int]]] = []
        self._held: list[list[bool]] = []
        for start in nfa.behinds:
            dfa = determinize(nfa, start, parts, meter)
            table = [[0] * parts.count for _ in dfa.rows]
            for state, row in enumerate(dfa.rows):
                for labels, after in row:
                    for label in labels:
                        table[state][label] = after
            self._behinds.append(table)
            self._held.append(dfa.final)
        self._asks_before, self._asks_behind = self._needs()
        self.start: Place = (OUTSIDE, (0,) * len(nfa.behinds))

    def _said(self, answers: list[dict[int, bool]], members: object) -> list[bool]:
        """Whether the classes of each kind are in the set; False for OUTSIDE, which is last."""
        number = self.nfa.sets.index(members) if members in self.nfa.sets else -1  # type: ignore[arg-type]
        return [answer.get(number, False) for answer in answers] + [False]

    def _needs(self) -> tuple[list[bool], list[int]]:
        """Whether, by state, the character before matters before another one is read; and the
        look-behinds that may matter later, as bits."""
        states = self.nfa.states
        skips: list[list[int]] = [[] for _ in states]  # backwards, nothing being read
        reads: list[list[int]] = [[] for _ in states]
        for number, state in enumerate(states):
            ways = state[2:] if state[0] in (CHAR, ASSERT, AHEAD) else state[1:]
            if state[0] == BEHIND:
                ways = state[3:]
            for target in ways:
                (reads if state[0] == CHAR else skips)[target].append(number)
        before = [False] * len(states)
        self._spread(
            [number for number, state in enumerate(states) if state[0] == ASSERT],
            [skips],
            before,
        )
        bits = [0] * len(states)
        for index in range(len(self.nfa.behinds)):
            mark = [False] * len(states)
            asking = [n for n, s in enumerate(states) if s[0] == BEHIND and s[2] == index]
            self._spread(asking, [skips, reads], mark)
            bits = [old | (new << index) for old, new in zip(bits, mark)]
        return before, bits

    @staticmethod
    def _spread(stack: list[int], edges: list[list[list[int]]], mark: list[bool]) -> None:
        for number in stack:
            mark[number] = True
        while stack:
            number = stack.pop()
            for table in edges:
                for source in table[number]:
                    if not mark[source]:
                        mark[source] = True
                        stack.append(source)

    def needs(self, state: int) -> tuple[bool, int]:
        """Whether ``state`` asks for the character before, and the look-behinds as bits."""
        return self._asks_before[state], self._asks_behind[state]

    def holds(self, condition: int, before: int, after: int) -> bool:
        """Whether an assertion holds between characters of two kinds."""
        kind, ascii_only = self.nfa.conditions[condition]
        if kind == "start":
            return before == OUTSIDE
        if kind == "end":
            return after == OUTSIDE
        if kind == "line start":
            return before == OUTSIDE or self._newline[before]
        if kind == "line end":
            return after == OUTSIDE or self._newline[after]
        word = self._word[ascii_only]
        if kind == "edge":
            return word[before] != word[after]
        # re finds no position inside no word in the empty text.
        return word[before] == word[after] and not before == after == OUTSIDE

    def held(self, index: int, place: Place) -> bool:
        """Whether a look-behind matches the text before a position."""
        return self._held[index][place[1][index]]

    def step(self, place: Place, label: int, before: bool, behinds: int) -> Place:
        """The ``Place`` after a character, reduced to the facts that are needed."""
        return (
            self.kind[label] if before else ANY,
            tuple(
                table[state][label] if behinds >> index & 1 else 0
                for index, (table, state) in enumerate(zip(self._behinds, place[1]))
            ),
        )
