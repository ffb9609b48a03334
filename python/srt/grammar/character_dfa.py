"""CharacterDfa: a deterministic automaton over characters, as arrays.

The alphabet consists of *character classes*: sets of code points with the same transitions in every
state. So ``\\w`` is one column, although Unicode has many ranges for it. The package ``fsm`` maps
tokens' bytes to characters.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
BoolArray = NDArray[np.bool_]
DEAD = -1


@dataclass(frozen=True, eq=False)
class CharacterDfa:
    """Arrays of an automaton. State 0 is the start; a final state is reachable from every state.

    Attributes:
        edges: first code point of each interval, ascending, ``edges[0] == 0`` [intervals].
        labels: class of each interval [intervals]; DEAD: no state has a transition on it.
        next: state after a character of each class, or DEAD [states, classes].
        final: True for states in which the text may end [states].
        strings: all texts of a small language; None for a larger one.
    """

    edges: Int32Array
    labels: Int32Array
    next: Int32Array
    final: BoolArray
    strings: tuple[str, ...] | None = None

    @property
    def states(self) -> int:
        return int(self.next.shape[0])

    @property
    def classes(self) -> int:
        return int(self.next.shape[1])

    def accepts(self, text: str) -> bool:
        """Return True if ``text`` is in the language."""
        points = np.array([ord(char) for char in text], dtype=np.int32)
        labels = self.labels[np.searchsorted(self.edges, points, side="right") - 1]
        state = 0
        for label in labels.tolist():
            state = int(self.next[state, label]) if label != DEAD else DEAD
            if state == DEAD:
                return False
        return bool(self.final[state])

    def pack(self) -> bytes:
        """Return the automaton as bytes, for ``unpack`` in another process."""
        return msgspec.msgpack.encode(
            [self.edges.tobytes(), self.labels.tobytes(), self.next.tobytes(),
             self.final.tobytes(), self.classes, self.strings]
        )  # fmt: skip

    @staticmethod
    def unpack(data: bytes) -> CharacterDfa:
        """Return the automaton from the bytes that ``pack`` returned."""
        edges, labels, table, final, classes, strings = msgspec.msgpack.decode(data)
        return CharacterDfa(
            np.frombuffer(edges, dtype=np.int32),
            np.frombuffer(labels, dtype=np.int32),
            np.frombuffer(table, dtype=np.int32).reshape(-1, classes),
            np.frombuffer(final, dtype=np.bool_),
            None if strings is None else tuple(strings),
        )
