"""Tokens of a service's model: their ids, for ``logit_bias`` of completion models."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

MAX_BIAS = 300  # entries of logit_bias that OpenAI takes
BIAS = 100.0  # the API's greatest: the tokens that have it are the only ones taken
NUMBER_ENDS = (" ", "\n", "-", " -")


class ServiceTokenizer(Protocol):
    """Methods that ``tiktoken`` and other tokenizers share; ``encode`` adds no special tokens. The
    end token is ``eot_token``, where there is such an attribute."""

    def encode(self, text: str, /) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int], /) -> str: ...


class TokenIds:
    """The tokenizer of ``model``: the one given, else for OpenAI's own service ``tiktoken``'s.

    It is made when it is first needed, which may read a file or fetch one. Thread-safe.
    """

    def __init__(self, model: str, tokenizer: ServiceTokenizer | None, official: bool) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._search = tokenizer is None and official
        self._integers: dict[int, float] | None = None
        self._lock = threading.Lock()

    def get(self) -> ServiceTokenizer | None:
        """The tokenizer, or None where nothing is known of it. May block."""
        with self._lock:
            if self._search:
                self._tokenizer, self._search = _published(self._model), False
            return self._tokenizer

    def integers(self) -> dict[int, float]:
        """A bias under which only whole numbers, and what ends one, are written. The shortest
        numbers come first, as there is room for some only. Empty where no tokenizer is known."""
        tokenizer = self.get()
        if self._integers is None:
            self._integers = {} if tokenizer is None else _integers(tokenizer)
        return dict(self._integers)


def end_of(tokenizer: ServiceTokenizer) -> int | None:
    """The id that ends a text, where it is known."""
    end = getattr(tokenizer, "eot_token", None)
    return end if isinstance(end, int) else None


def _integers(tokenizer: ServiceTokenizer) -> dict[int, float]:
    found: dict[int, float] = {}
    end = end_of(tokenizer)
    room = MAX_BIAS - (end is not None)
    numbers = (f"{n:0{digits}}" for digits in (1, 2, 3) for n in range(10**digits))
    for text in chain(NUMBER_ENDS, numbers):
        ids = tokenizer.encode(text)
        if len(ids) == 1 and tokenizer.decode(ids) == text:
            found[ids[0]] = BIAS
        if len(found) == room:
            break
    return {**found, **({} if end is None else {end: BIAS})}


def _published(model: str) -> Any:
    try:
        import tiktoken

        return tiktoken.encoding_for_model(model)
    except Exception:  # not installed, not OpenAI's model, or its file cannot be had
        return None
