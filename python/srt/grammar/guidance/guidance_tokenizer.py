"""llguidance's tokenizer of a vocabulary: a trie of the tokens, and the tokenisation of text."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.core.vocabulary import Vocabulary

UTF8 = [byte for byte in range(256) if byte < 0xC0 or 0xC2 <= byte < 0xF5]


class TokenSource:
    """A tokenizer for calls by llguidance. No call raises, because llguidance would abort.

    Attributes:
        tokens: bytes by id, ``Vocabulary.size`` entries.
        complete: True if every byte of UTF-8 is a token, so that any text can be encoded. Without
            it, llguidance would treat forced text that has no tokens as generated.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        missing = vocabulary.size - len(vocabulary.tokens)
        self.tokens = [bytes(token) for token in vocabulary.tokens] + [b""] * missing
        self.special_token_ids = sorted({*vocabulary.special, *vocabulary.eos})
        self.eos_token_id = vocabulary.eos[0] if vocabulary.eos else None
        self._encode: Callable[[Sequence[str]], list[list[int]]] = vocabulary.encode
        special = frozenset(self.special_token_ids)
        self._ids = {token: i for i, token in enumerate(self.tokens) if token and i not in special}
        self._longest = max(map(len, self._ids), default=1)
        self.complete = all(bytes([byte]) in self._ids for byte in UTF8)

    def __call__(self, text: str) -> list[int]:
        """Return token ids that spell ``text``: the canonical ones if the tokenizer reproduces the
        text, else the longest matching token at each offset."""
        data = text.encode()
        try:
            found = list(self._encode([text])[0])
            if b"".join(self.tokens[token] for token in found) == data:
                return found
        except Exception:
            pass
        return self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        found, at = [], 0
        while at < len(data):
            for end in range(min(len(data), at + self._longest), at, -1):
                token = self._ids.get(data[at:end])
                if token is not None:
                    found.append(token)
                    at = end
                    break
            else:  # no token begins with this byte
                return found
        return found


class TokenizerCache:
    """Cache of one ``LLTokenizer``, and ``TokenSource.complete``, per vocabulary, for the lifetime
    of the vocabulary. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: weakref.WeakKeyDictionary[Vocabulary, tuple[Any, bool]] = (
            weakref.WeakKeyDictionary()
        )

    def get(self, vocabulary: Vocabulary) -> tuple[Any, bool]:
        """Return tokenizer and completeness, made at the first call (0.5 s for 131 k tokens)."""
        with self._lock:
            made = self._made.get(vocabulary)
            if made is None:
                made = self._made[vocabulary] = self._make(vocabulary)
            return made

    @staticmethod
    def _make(vocabulary: Vocabulary) -> tuple[Any, bool]:
        from llguidance import LLTokenizer

        source: Any = TokenSource(vocabulary)
        return LLTokenizer(source, eos_token=list(vocabulary.eos) or None), source.complete


TOKENIZERS = TokenizerCache()
