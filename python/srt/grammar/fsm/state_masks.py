"""StateMasks: the tokens that an automaton allows in each state, computed at the first use and
cached.

A state is a pair (q, u). q is the state of the automaton; u is the character that is incomplete, as
``utf8`` numbers it. The state is live if some character that u may become has a transition from q.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sglang.srt.grammar.character_dfa import DEAD, CharacterDfa
from sglang.srt.grammar.fsm.class_trie import ClassTrie, Subtrie, reachable, spread
from sglang.srt.grammar.fsm.mask_cache import NARROW, MaskRow
from sglang.srt.grammar.fsm.token_table import TokenTable
from sglang.srt.grammar.fsm.utf8 import missing, opened, split

State = tuple[int, int]  # (q, u)
Nodes = NDArray[np.int64]
Numbers = NDArray[np.integer]
START: State = (0, 0)
SCATTER = 1 << 14  # limit of the tokens whose bits are set one by one; more are gathered at once
SUBTRIES = 16  # limit of the sets W per automaton; states of further sets are walked in full
RUN = 256  # limit of the characters of a forced run for drafts


class StateMasks:
    """The mask rows of one automaton over one vocabulary."""

    def __init__(self, automaton: CharacterDfa, table: TokenTable) -> None:
        self.automaton, self.table = automaton, table
        self.trie = ClassTrie(automaton, table)
        self.owner = table.rows.owner()
        self._edges: list[int] = automaton.edges.tolist()
        self._labels: list[int] = automaton.labels.tolist()
        self._next = automaton.next
        self._live = automaton.next != DEAD
        self._subtries: dict[int, tuple[Subtrie | None, int]] = {}
        self._sets: dict[bytes, Subtrie] = {}
        self._reachable: dict[int, NDArray[np.int32]] = {}
        self._enders: dict[int, tuple[Nodes, Numbers, list[int]]] = {}
        self._only = self._singles()

    @property
    def nbytes(self) -> int:
        """Return the bytes that only this grammar holds, without its rows."""
        parts = (self.automaton.next, self._live, self.automaton.edges, self.automaton.labels)
        sets = sum(subtrie.nbytes for subtrie in list(self._sets.values()))
        return sum(part.nbytes for part in parts) + sets + self.trie.nbytes

    # -- states ----------------------------------------------------------------------------------

    def walk(self, state: State, data: bytes) -> State | None:
        """Return the state after ``data``, or None if it is not live."""
        q, partial = state
        parts = split(opened(partial) + data)
        if parts is None:
            return None
        text, partial = parts
        table, labels, edges = self.automaton.next, self._labels, self._edges
        for char in text:
            label = labels[bisect_right(edges, ord(char)) - 1]
            q = DEAD if label == DEAD else table.item(q, label)
            if q == DEAD:
                return None
        if partial and not self._may(q, partial):
            return None
        return q, partial

    def accepting(self, state: State) -> bool:
        return state[1] == 0 and self.automaton.final.item(state[0])

    def ended(self, state: State) -> bool:
        """Return whether no character may follow."""
        return state[1] == 0 and not self._live[state[0]].any()

    def only(self, state: State) -> str:
        """Return the only character that may come next, an incomplete one included; "" if the text
        may end or several may come."""
        q, partial = state
        if not partial:
            return self._only[q]
        if self.automaton.next.shape[1] == 0:
            return ""
        within = self._within(partial)
        labels = within[self._live[q, within]]
        if len(labels) != 1:
            return ""
        char = self._characters[int(labels[0])]
        return char if char and char.encode().startswith(opened(partial)) else ""

    def run(self, state: State, limit: int = RUN) -> tuple[bytes, list[State]]:
        """Return the bytes that must follow, up to ``limit`` characters, and the state after each
        of these characters."""
        data, path = b"", list[State]()
        while len(path) < limit:
            char = self.only(state)
            if not char:
                break
            data += char.encode()[len(opened(state[1])) :]
            step = self.walk((state[0], 0), char.encode())
            assert step is not None
            state = step
            path.append(state)
        return data, path

    def next_characters(self, q: int, limit: int) -> list[str] | None:
        """Return all characters that may come next in ``q``; None if they exceed ``limit``."""
        labels = np.flatnonzero(self._live[q])
        if self._sizes[labels].sum() > limit:
            return None
        wanted, ends = set(labels.tolist()), [*self._edges[1:], 0x110000]
        return [
            chr(point)
            for low, high, label in zip(self._edges, ends, self._labels)
            if label in wanted
            for point in range(low, high)
            if not 0xD800 <= point < 0xE000
        ]

    def next_examples(self, q: int) -> list[str]:
        """Return some of the characters that may come next in ``q``, at least one of each class."""
        chars, labels = self._examples
        return [chars[at] for at in np.flatnonzero(self._live[q, labels]).tolist()]

    # -- rows ------------------------------------------------------------------------------------

    def row(self, state: State) -> MaskRow:
        """Return the mask row of the tokens allowed in ``state``."""
        key = (self.owner, *state)
        row = self.table.rows.get(key)
        if row is None:
            row = self._inside(state) if state[1] else self._between(state[0])
            self.table.rows.put(key, row)
        return row

    def _between(self, q: int) -> MaskRow:
        """Return the row of a state between two characters. Walk the folded trie from its root or,
        in a wide state, from the nodes where tokens leave W."""
        subtrie, alive = self._subtrie(q)[0], list[Nodes]()
        if subtrie is None:
            nodes = self.trie.children(np.zeros(1, dtype=np.int64))[0]
            length, states = 0, np.full(len(nodes), q)
        else:
            length, chain = self._chain(q, subtrie)
            nodes = subtrie.border[: subtrie.border_cut[length + 1]]
            states = chain[subtrie.border_at[: len(nodes)]]
            if length < subtrie.deepest and self._enters(int(chain[length]), subtrie):
                more = subtrie.inner[subtrie.inner_cut[length + 1] : subtrie.inner_cut[length + 2]]
                nodes = np.concatenate((nodes, more))
                states = np.concatenate((states, np.full(len(more), chain[length])))
        while len(nodes):
            nodes, states = self._step(nodes, states, alive)
            nodes, source = self.trie.children(nodes)
            states = states[source]
        on = np.zeros(0, np.bool_) if subtrie is None else subtrie.depth <= length
        return self._pack(np.concatenate(alive or [nodes]), on, self.automaton.final.item(q))

    def _step(self, nodes: Nodes, states: Numbers, alive: list[Nodes]) -> tuple[Nodes, Numbers]:
        """Take the symbol of each node in the state of its parent. Append the allowed nodes to
        ``alive``. Return the nodes that continue, and their states."""
        trie, symbols = self.trie, self.trie.symbols[nodes]
        whole = symbols < trie.classes
        if not whole.all():
            half = np.flatnonzero(~whole)
            may = self._live[states[half]] & trie.sets[symbols[half] - trie.classes]
            alive.append(nodes[half[may.any(axis=1)]])
            nodes, symbols, states = nodes[whole], symbols[whole], states[whole]
        after = self._next[states, symbols]
        kept = np.flatnonzero(after != DEAD)
        alive.append(nodes[kept])
        return nodes[kept], after[kept]

    def _pack(self, nodes: Nodes, on: NDArray[np.bool_], ending: bool) -> MaskRow:
        """Return the row of the tokens on ``nodes`` and, if it is not empty, on the nodes of
        ``on``."""
        trie = self.trie
        if not len(on):
            count = int((trie.begins[nodes + 1] - trie.begins[nodes]).sum())
            if count <= SCATTER:
                return self.table.row(trie.ids[spread(trie.begins, nodes)[0]], ending)
            on = np.zeros(len(trie.symbols) + 1, dtype=np.bool_)
        on[nodes] = True
        flags = on[trie.node]
        if np.count_nonzero(flags) <= NARROW:
            return self.table.row(np.flatnonzero(flags), ending)
        return self.table.row(flags, ending)

    def _inside(self, state: State) -> MaskRow:
        """Return the row of a state inside a character. Tokens that end with the incomplete
        character are looked up by its class. The few others that begin inside a character are tried
        one by one."""
        q, partial = state
        if partial not in self._enders:
            self._enders[partial] = self._split(partial)
        ids, labels, others = self._enders[partial]
        found = ids[self._live[q, labels]].tolist()
        tokens = self.table.tokens
        found += [token for token in others if self.walk(state, tokens[token]) is not None]
        return self.table.row(np.array(found, dtype=np.int64), False)

    def _split(self, partial: int) -> tuple[Nodes, Numbers, list[int]]:
        """Return the tokens that are exactly the rest of ``partial``, with the classes of the
        character, and the tokens that continue after it or leave it incomplete."""
        need, begin, tokens = missing(partial), opened(partial), self.table.tokens
        ids, labels, others = [], [], []
        for token in self.table.inside:
            parts = split(begin + tokens[token])
            if parts is None:
                continue
            if len(tokens[token]) != need:
                others.append(token)
                continue
            label = self._labels[bisect_right(self._edges, ord(parts[0])) - 1]
            if label != DEAD:
                ids.append(token)
                labels.append(label)
        return np.array(ids, np.int64), np.array(labels, np.int32), others

    # -- wide states -----------------------------------------------------------------------------

    def _subtrie(self, q: int) -> tuple[Subtrie | None, int]:
        """Return W, the classes by which most characters move on from ``q``, and the state that
        they lead to; None if W is only one character."""
        if q not in self._subtries:
            found: tuple[Subtrie | None, int] = None, DEAD
            live = np.flatnonzero(self._live[q])
            targets, places = np.unique(self._next[q, live], return_inverse=True)
            points = np.bincount(places, weights=self._sizes[live], minlength=1)
            if points.max() > 1:
                target = int(targets[points.argmax()])
                found = self._subtrie_of(self._next[q] == target), target
            self._subtries[q] = found
        return self._subtries[q]

    def _subtrie_of(self, classes: NDArray[np.bool_]) -> Subtrie | None:
        key = classes.tobytes()
        if key not in self._sets:
            if len(self._sets) >= SUBTRIES:
                return None
            self._sets[key] = Subtrie(self.trie, classes)
        return self._sets[key]

    def _chain(self, q: int, subtrie: Subtrie) -> tuple[int, Numbers]:
        """Return the number of consecutive moves by W from ``q``, at most ``subtrie.deepest``, and
        the states passed, one more than that."""
        states = [q]
        while len(states) <= subtrie.deepest:
            found, target = self._subtrie(states[-1])
            if found is not subtrie:
                break
            states.append(target)
        return len(states) - 1, np.array(states)

    def _enters(self, q: int, subtrie: Subtrie) -> bool:
        """Return whether some symbol within ``subtrie`` is allowed in ``q``."""
        within, classes = subtrie.within, self.trie.classes
        halves = (self.trie.sets & self._live[q]).any(axis=1)
        return bool((self._live[q] & within[:classes]).any() or (halves & within[classes:]).any())

    # -- classes ---------------------------------------------------------------------------------

    def _within(self, partial: int) -> NDArray[np.int32]:
        if partial not in self._reachable:
            self._reachable[partial] = reachable(self.automaton, partial)
        return self._reachable[partial]

    def _may(self, q: int, partial: int) -> bool:
        """Return whether ``q`` has a transition for some character that the incomplete character
        ``partial`` may become."""
        within = self._within(partial)
        return len(within) > 0 and bool(self._live[q, within].any())

    @cached_property
    def _sizes(self) -> NDArray[np.float64]:
        """Return the number of code points of each class, [classes]."""
        edges, labels = self.automaton.edges, self.automaton.labels
        sizes, named = np.diff(np.append(edges, 0x110000)), labels != DEAD
        points = np.bincount(labels[named], sizes[named], minlength=self.automaton.classes)
        return points.astype(np.float64)

    @cached_property
    def _characters(self) -> list[str]:
        """Return the only character of each class, "" if the class has several."""
        found = [""] * self.automaton.classes
        for edge, label in zip(self._edges, self._labels):
            if label != DEAD and self._sizes[label] == 1:
                found[label] = chr(edge)
        return found

    @cached_property
    def _examples(self) -> tuple[list[str], NDArray[np.int32]]:
        """Return example characters (printable ASCII, white space and the first character of each
        class) and their classes."""
        chars = [*map(chr, range(0x20, 0x7F)), *"\n\r\tжñ日"]
        firsts: dict[int, str] = {}
        for low, label in zip(self._edges, self._labels):
            if label != DEAD and not 0xD800 <= low < 0xE000:
                firsts.setdefault(label, chr(low))
        chars += firsts.values()
        points = np.array([ord(char) for char in chars])
        places = np.searchsorted(self.automaton.edges, points, side="right") - 1
        labels = self.automaton.labels[places]
        named = np.flatnonzero(labels != DEAD)
        return [chars[at] for at in named.tolist()], labels[named]

    def _singles(self) -> list[str]:
        """Return the value of ``only`` between two characters, by state."""
        if not self.automaton.classes:
            return [""] * self.automaton.states
        alone = (self._live.sum(axis=1) == 1) & ~self.automaton.final
        labels = np.where(alone, self._live.argmax(axis=1), DEAD).tolist()
        return ["" if label == DEAD else self._characters[label] for label in labels]
