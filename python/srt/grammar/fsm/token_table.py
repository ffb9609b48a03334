"""TokenTable: a vocabulary's tokens as a trie, made once and shared by all its grammars."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.fsm.mask_cache import NARROW, MaskCache, MaskRow
from sglang.srt.grammar.fsm.utf8 import span, split

Int32Array = NDArray[np.int32]
OPEN = 0x110000  # first label of open (incomplete) characters at a token's end
CACHE_BYTES = 32 << 20  # limit of the masks of all grammars of a vocabulary
_WORDS = bytes(byte for byte in range(0x80) if chr(byte).isalnum())
_MARKS = b' \n!"#$%&()*+,-./:;<=>?@[\\]^`{|}~'

_tables: WeakKeyDictionary[Vocabulary, TokenTable] = WeakKeyDictionary()
_making = threading.Lock()


class TokenTable:
    """The plain tokens of a vocabulary: tokens that are neither control nor end tokens.

    A trie over code points holds every token that begins between two characters; an open character
    at a token's end is a further label. Nodes are in level order; a node's children are adjacent.

    Attributes:
        tokens: bytes by id; b"" for an id that is not a plain token.
        parents: parent of each node [nodes]; 0 is the root.
        levels: first node of each depth, and ``nodes`` at the end.
        points: the distinct labels, ascending; a label is a code point, or OPEN + the index of an
            open character in ``opens`` [points].
        ``places``: index in ``points`` of each node's label [nodes].
        ids, ends: each token of the trie and its node [tokens in the trie].
        opens: the distinct open characters at tokens' ends, as ``utf8`` numbers them.
        spans: first and last possible code point of each open character [opens, 2].
        inside: tokens that begin inside a character.
        rows: cache of masks.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.size, self.words = vocabulary.size, vocabulary.words
        self.encode = vocabulary.encode
        self.eos = tuple(sorted(set(vocabulary.eos)))
        hidden = vocabulary.special | set(self.eos)
        self.tokens = [
            b"" if token in hidden else data for token, data in enumerate(vocabulary.tokens)
        ]
        self.longest = max(map(len, self.tokens), default=0)
        self.inside: list[int] = []
        self.opens: list[int] = []
        self.rows = MaskCache(CACHE_BYTES)
        self._plant(*self._spell())
        self.spans = np.array([span(partial) for partial in self.opens], np.int32).reshape(-1, 2)

    @staticmethod
    def of(vocabulary: Vocabulary) -> TokenTable:
        """Return the table of ``vocabulary``, made at the first call. Thread-safe."""
        with _making:
            if vocabulary not in _tables:
                _tables[vocabulary] = TokenTable(vocabulary)
            return _tables[vocabulary]

    # -- looked up -------------------------------------------------------------------------------

    @cached_property
    def ordered(self) -> list[bytes]:
        """The distinct plain tokens, ascending."""
        return sorted({data for data in self.tokens if data})

    def prepare(self) -> None:
        """Compute the cached properties ``ordered``, ``boundary`` and ``numbers`` now."""
        _ = self.ordered, self.boundary, self.numbers

    @cached_property
    def numbers(self) -> dict[bytes, tuple[int, ...]]:
        """Ids of the tokens by their bytes, ascending."""
        found: dict[bytes, tuple[int, ...]] = {}
        for token, data in enumerate(self.tokens):
            if data:
                found[data] = (*found.get(data, ()), token)
        return found

    @cached_property
    def joined(self) -> NDArray[np.bool_]:
        """Bool [256, 256]: True if some token contains the two bytes in sequence."""
        flat = np.frombuffer(b"".join(self.tokens), dtype=np.uint8)
        inner = np.ones(len(flat), dtype=np.bool_)
        stops = np.cumsum([len(data) for data in self.tokens if data])
        inner[stops - 1] = False
        found = np.zeros((256, 256), dtype=np.bool_)
        at = np.flatnonzero(inner)
        found[flat[at], flat[at + 1]] = True
        return found

    @cached_property
    def boundary(self) -> bytes:
        """Bytes with 1 at index 256 * left + right if no token crosses a boundary between the two
        bytes: a letter or digit before a mark, or any character before a space."""
        found = np.zeros((256, 256), dtype=np.bool_)
        words = np.frombuffer(_WORDS, dtype=np.uint8)
        marks = np.frombuffer(_MARKS, dtype=np.uint8)
        found[np.ix_(words, marks)] = True
        found[0x21:0x7F, 0x20] = True
        return (found & ~self.joined).tobytes()

    def bounded(self, data: bytes, start: int) -> bool:
        """Return True if ``data`` has a boundary that no token crosses, at ``start`` or after."""
        table = self.boundary
        return any(table[left << 8 | right] for left, right in zip(data[start - 1 :], data[start:]))

    def text(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self.tokens[token] for token in tokens])

    def beginning(self, data: bytes) -> list[int]:
        """Return the tokens whose bytes are a prefix of ``data``, or all of it."""
        ends = range(1, min(len(data), self.longest) + 1)
        return [token for end in ends for token in self.numbers.get(data[:end], ())]

    def beyond(self, data: bytes, following: Collection[bytes]) -> Iterator[bytes]:
        """Yield the rests of longer tokens that begin with ``data``. All tokens that are a prefix
        of such a rest must be in ``following``."""
        may = set(following)
        for first in {text[:1] for text in may}:
            at = bisect_left(self.ordered, data + first)
            while at < len(self.ordered) and self.ordered[at].startswith(data + first):
                rest = self.ordered[at][len(data) :]
                at += 1
                parts = (rest[:end] for end in range(1, len(rest) + 1))
                if all(part in may for part in parts if part in self.numbers):
                    yield rest

    def spell(self, data: bytes) -> list[int]:
        """Return the canonical tokens of ``data``; none if it ends inside a character, or if the
        tokenizer does not reproduce its bytes."""
        parts = split(data)
        if parts is None or parts[1]:
            return []
        found = self.encode([parts[0]])[0]
        return found if self.text(found) == data else []

    def row(self, tokens: NDArray[Any], ending: bool) -> MaskRow:
        """Return the row of ``tokens``: ids, or ``32 * words`` flags, which are changed."""
        if tokens.dtype != np.bool_:
            if len(tokens) <= NARROW:
                return MaskRow(tuple(sorted(tokens.tolist())), b"", ending)
            flags = np.zeros(32 * self.words, dtype=np.bool_)
            flags[tokens] = True
            tokens = flags
        if ending:
            tokens[list(self.eos)] = True
        return MaskRow(None, np.packbits(tokens, bitorder="little").tobytes(), ending)

    # -- making ----------------------------------------------------------------------------------

    def _spell(self) -> tuple[list[int], Int32Array, Int32Array]:
        """Return ids, lengths and concatenated labels of tokens that begin between characters."""
        ids, lengths, flat = [], array("i"), array("i")
        numbers: dict[int, int] = {}
        for token, data in enumerate(self.tokens):
            if not data:
                continue
            if data[0] & 0xC0 == 0x80:
                self.inside.append(token)
                continue
            parts = split(data)
            if parts is None:
                continue
            text, partial = parts
            flat.extend(map(ord, text))
            if partial:
                flat.append(OPEN + numbers.setdefault(partial, len(numbers)))
            ids.append(token)
            lengths.append(len(text) + (partial > 0))
        self.opens = list(numbers)
        return ids, np.array(lengths, dtype=np.int32), np.array(flat, dtype=np.int32)

    def _plant(self, ids: list[int], lengths: Int32Array, flat: Int32Array) -> None:
        """Build the trie level by level. A node is a distinct pair (parent, label)."""
        self.points, places = np.unique(flat, return_inverse=True)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        ends = np.zeros(len(ids), dtype=np.int64)  # each token's node at the current depth
        growing = np.arange(len(ids))
        above, under, levels = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], [0, 1]
        width = max(1, len(self.points))
        for depth in range(int(lengths.max(initial=0))):
            growing = growing[lengths[growing] > depth]
            key = ends[growing] * width + places[starts[growing] + depth]
            nodes, inverse = np.unique(key, return_inverse=True)
            ends[growing] = levels[-1] + inverse
            above.append(nodes // width)
            under.append(nodes % width)
            levels.append(levels[-1] + len(nodes))
        self.levels = levels
        self.parents = np.concatenate(above).astype(np.int32)
        self.places = np.concatenate(under).astype(np.int32)
        order = np.argsort(ends, kind="stable")
        self.ids = np.array(ids, dtype=np.int32)[order]
        self.ends = ends[order].astype(np.int32)


def difference(tokens: list[int], wanted: list[int]) -> tuple[int, list[int]]:
    """Return the number of last ``tokens`` to remove, and the tokens to append then, to obtain
    ``wanted``; (0, []) if ``wanted`` is empty."""
    if not wanted:
        return 0, []
    same = 0
    while same < min(len(tokens), len(wanted)) and tokens[same] == wanted[same]:
        same += 1
    return len(tokens) - same, wanted[same:]
