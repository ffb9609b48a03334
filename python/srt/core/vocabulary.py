"""Vocabulary: what a grammar must know of a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of one model.

    Attributes:
        tokens: bytes by id; b"" where an id has none. A token may end inside a character.
        size: number of logits, at least ``len(tokens)``; a mask has ceil(size / 32) words.
        eos: ids that end a generation.
        special: control tokens, which no text matches (end tokens among them).
        encode: canonical token ids of each of several texts, as the tokenizer writes them inside a
            longer text: nothing is put before or after, and control tokens in it are plain text.
            The bytes of the ids need not be the text's where the tokenizer normalises: compare.
    """

    tokens: Sequence[bytes]
    size: int
    eos: tuple[int, ...]
    special: frozenset[int]
    encode: Callable[[Sequence[str]], list[list[int]]]

    @property
    def words(self) -> int:
        """Number of int32 words in a mask."""
        return (self.size + 31) // 32
