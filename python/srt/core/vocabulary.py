"""Vocabulary: the facts about a tokenizer that grammars need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of one model.

    Attributes:
        tokens: bytes of each token by id; b"": none. A token may end inside a character.
        size: number of logits, at least ``len(tokens)``; a mask has ceil(size / 32) words.
        eos: ids that end a generation.
        special: ids of control tokens, which no text matches (end tokens among them).
        encode: returns the canonical token ids of each text, as inside a longer text: nothing is
            added before or after, and names of control tokens are plain text. If the tokenizer
            normalises, the bytes of the ids may differ from the text: compare them.
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
