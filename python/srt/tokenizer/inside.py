"""Inside: texts as they are tokenized in the middle of a longer one."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

MARKS = ("\n", "\x00")  # what to put before a text; hardly any tokenizer joins them to one


class Inside:
    """Encodes without what a tokenizer puts before the first word.

    Sentencepiece-style tokenizers write a space before a text. Such a text is encoded behind a
    mark, and the mark's tokens are left out; where that cannot be told apart, the text's own
    tokens come back, whose bytes then begin with the space.
    """

    def __init__(self, model: tokenizers.Tokenizer, table: Sequence[bytes]) -> None:
        self._model, self._table = model, table
        for self._mark in ("", *MARKS):
            if self._separable():
                return
        self._mark = ""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        if len(texts) == 1:
            found = [self._model.encode(self._mark + texts[0], add_special_tokens=False).ids]
        else:
            marked = [self._mark + text for text in texts]
            encoded = self._model.encode_batch_fast(marked, add_special_tokens=False)
            found = [each.ids for each in encoded]
        return [self._without_mark(ids) for ids in found] if self._mark else found

    def _separable(self) -> bool:
        (ids,) = self.encode(["a"])
        return b"".join(self._table[i] for i in ids) == b"a"

    def _without_mark(self, ids: list[int]) -> list[int]:
        seen = b""
        for i, token in enumerate(ids):
            seen += self._table[token]
            if seen.lstrip(b" ") == self._mark.encode() or seen == self._mark.encode():
                return ids[i + 1 :]
        return ids
