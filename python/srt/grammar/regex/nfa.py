"""Nfa: a nondeterministic automaton of a pattern's tree, built from its end to its start.

Equal states are built once. So words with a common end share it, and the automaton of most patterns
is nearly minimal.
"""

from __future__ import annotations

from sglang.srt.grammar.regex.budget import BeyondBudget, Meter
from sglang.srt.grammar.regex.charset import EVERYTHING, NEWLINE, CharSet
from sglang.srt.grammar.regex.simplify import plain
from sglang.srt.grammar.regex.tree import Assert, Chars, Concat, Either, Look, Node, Repeat, width

CHAR, SPLIT, ASSERT, AHEAD, BEHIND, ACCEPT = range(6)
State = tuple[int, ...]


class Nfa:
    """A nondeterministic automaton over sets of characters.

    Attributes:
        states: a tuple for each state, which begins with its kind: CHAR (set, next); SPLIT (next,
            ...); ASSERT (condition, next); AHEAD (negative, start of its body, next); BEHIND
            (negative, index in ``behinds``, next); ACCEPT ().
        sets: the sets of characters, by number.
        conditions: the assertions, by number.
        behinds: for each look-behind, the start of an automaton of any text followed by its body,
            which accepts at positions where the look-behind holds.
        always: a state from which every text is accepted; -1: none.
    """

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.states: list[State] = []
        self.sets: list[CharSet] = []
        self.conditions: list[tuple[str, bool]] = []
        self.behinds: list[int] = []
        self.always = -1
        self._known: dict[State, int] = {}
        self._sets: dict[CharSet, int] = {}
        self._conditions: dict[tuple[str, bool], int] = {}
        self._bodies: dict[int, int] = {}  # bodies of look-arounds, by node
        self.accept = self._new((ACCEPT,))

    @property
    def plain(self) -> bool:
        """Return whether every state depends only on the next character."""
        return not self.conditions and not self.behinds and self.always < 0

    def _new(self, state: State) -> int:
        if len(self.states) >= self.meter.budget.nfa:
            raise BeyondBudget(
                f"regex needs more than {self.meter.budget.nfa} states before it is made "
                "deterministic; make its repetitions smaller"
            )
        self.states.append(state)
        return len(self.states) - 1

    def _state(self, state: State) -> int:
        if state not in self._known:
            self._known[state] = self._new(state)
        return self._known[state]

    def set_number(self, members: CharSet) -> int:
        if members not in self._sets:
            self._sets[members] = len(self.sets)
            self.sets.append(members)
        return self._sets[members]

    def char(self, members: CharSet, after: int) -> int:
        return self._state((CHAR, self.set_number(members), after))

    def split(self, targets: list[int]) -> int:
        distinct = list(dict.fromkeys(targets))
        return distinct[0] if len(distinct) == 1 else self._state((SPLIT, *distinct))

    def add(self, node: Node, after: int) -> int:
        """Add ``node`` before the state ``after``. Return the state from which ``node`` and then
        ``after`` match."""
        self.meter.spend(1)
        if isinstance(node, Chars):
            return self.char(node.members, after)
        if isinstance(node, Concat):
            for part in reversed(node.parts):
                after = self.add(part, after)
            return after
        if isinstance(node, Either):
            return self.split([self.add(part, after) for part in node.parts])
        if isinstance(node, Repeat):
            return self._repeat(node, after)
        if isinstance(node, Look):
            return self._look(node, after)
        return self._assert(node, after)

    def _repeat(self, node: Repeat, after: int) -> int:
        low = node.low
        if node.high is None:
            loop = self._new((SPLIT,))
            body = self.add(node.part, loop)
            self.states[loop] = (SPLIT, body, after)
            start = loop
            if low:
                low, start = low - 1, body
        else:
            start = after
            for _ in range(node.high - low):
                more = self.split([self.add(node.part, start), after])
                if more == start:  # the part is empty
                    break
                start = more
        for _ in range(low):
            more = self.add(node.part, start)
            if more == start:
                break
            start = more
        return start

    # -- assertions ------------------------------------------------------------------------------

    def _assert(self, node: Assert, after: int) -> int:
        if node.kind == "tail":
            newline = self.char(NEWLINE, self._condition("end", False, self._any()))
            ahead = self._state((AHEAD, 0, newline, after))
            return self.split([self._condition("end", False, after), ahead])
        return self._condition(node.kind, node.ascii, after)

    def _condition(self, kind: str, ascii_only: bool, after: int) -> int:
        key = kind, ascii_only
        if key not in self._conditions:
            self._conditions[key] = len(self.conditions)
            self.conditions.append(key)
        return self._state((ASSERT, self._conditions[key], after))

    def _any(self) -> int:
        if self.always < 0:
            self.always = self._new((SPLIT,))
            loop = self.char(EVERYTHING, self.always)
            self.states[self.always] = (SPLIT, loop, self.accept)
        return self.always

    def _look(self, node: Look, after: int) -> int:
        if not node.behind or width(node.part)[1] == 0:
            if id(node) not in self._bodies:
                self._bodies[id(node)] = self.add(node.part, self._any())
            return self._state((AHEAD, int(node.negative), self._bodies[id(node)], after))
        if id(node) not in self._bodies:
            if not plain(node.part):
                raise BeyondBudget(
                    "regex: an assertion inside a look-behind is not supported; move it before"
                )
            self._bodies[id(node)] = len(self.behinds)
            self.behinds.append(self.after_any(self.add(node.part, self.accept)))
        return self._state((BEHIND, int(node.negative), self._bodies[id(node)], after))

    def after_any(self, start: int) -> int:
        """Return a state from which any text and then ``start`` matches."""
        loop = self._new((SPLIT,))
        self.states[loop] = (SPLIT, self.char(EVERYTHING, loop), start)
        return loop
