"""Index of the texts of parked contexts: finds the longest one that a new prompt begins with.

A text is kept as its length and digest. A prompt is hashed once, from its beginning to its end; at
each length that a parked text has, the digest so far is looked up. So a prompt costs one pass over
its bytes and one look-up for each different length. There are at most as many lengths as contexts
that one key may park.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

T = TypeVar("T")
DIGEST_BYTES = 16
CONTINUES = 0b10  # first two bits of a byte inside a UTF-8 character


def bytes_of(table: Sequence[bytes], tokens: Iterable[int]) -> bytes:
    """Return the concatenated bytes of tokens; ``table``: the bytes of every token id."""
    return b"".join(table[token] for token in tokens if token < len(table))


class ContextText:
    """Length and digest of the UTF-8 bytes of a context's text.

    Attributes:
        length: number of bytes.
    """

    def __init__(self, text: bytes = b"") -> None:
        self._state, self.length = blake2b(text, digest_size=DIGEST_BYTES), len(text)

    @property
    def digest(self) -> bytes:
        return self._state.digest()

    def grown(self, more: bytes) -> ContextText:
        """Return a new ContextText with more bytes at its end; this one stays as it is."""
        found = ContextText()
        found._state, found.length = self._state.copy(), self.length + len(more)
        found._state.update(more)
        return found


class TextIndex(Generic[T]):
    """Values by their text; several values may have the same text."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, bytes], list[T]] = {}
        self._lengths: list[int] = []  # sorted, one for each different text

    def __len__(self) -> int:
        return sum(map(len, self._values.values()))

    def add(self, text: ContextText, value: T) -> None:
        key = text.length, text.digest
        if key not in self._values:
            insort(self._lengths, text.length)
        self._values.setdefault(key, []).append(value)

    def remove(self, text: ContextText, value: T) -> None:
        """Remove a value that was added with this text."""
        key = text.length, text.digest
        self._values[key].remove(value)
        if not self._values[key]:
            del self._values[key]
            del self._lengths[bisect_left(self._lengths, text.length)]

    def longest(self, text: bytes) -> tuple[int, list[T]]:
        """Return length and values of the longest indexed text that is a prefix of ``text`` and
        does not end inside a UTF-8 character; (0, []) if there is none."""
        state, read, view = blake2b(digest_size=DIGEST_BYTES), 0, memoryview(text)
        found: tuple[int, list[T]] = 0, []
        for length in self._lengths:
            if length > len(text):
                break
            if length > read:
                state.update(view[read:length])
                read = length
            inside = length < len(text) and text[length] >> 6 == CONTINUES
            values = self._values.get((length, state.digest()))
            if values is not None and not inside:
                found = length, values
        return found
