"""A tokenizer for tests of ``logit_bias``: pieces of a text by a pattern, numbered as they come."""

from __future__ import annotations

import re
from collections.abc import Sequence


class WordTokenizer:
    """A token is a word with the space before it, at most three digits, or one other character."""

    eot_token = 0

    def __init__(self) -> None:
        self.pieces = ["<end>"]

    def encode(self, text: str) -> list[int]:
        found = []
        for piece in re.findall(r" ?[A-Za-z]+|\d{1,3}|.", text, re.DOTALL):
            if piece not in self.pieces:
                self.pieces.append(piece)
            found.append(self.pieces.index(piece))
        return found

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in ids)
