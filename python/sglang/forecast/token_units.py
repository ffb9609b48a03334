"""Tokens: conversion of texts to units (token numbers) and back, with the backend's tokenizer or an
estimate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from sglang.backend.base import Backend
from sglang.errors import Unsupported
from sglang.forecast.cache_model import Units, units

BYTES = 4  # bytes of English text a token, in the vocabularies of large models


class UnitTokens(Protocol):
    """A tokenizer for forecasts. ``said`` describes how tokens are counted; "" if the count is
    exact."""

    said: str

    def encode(self, texts: Sequence[str], special: bool) -> list[Units]:
        """Return the units of each text. ``special``: include the tokens that the tokenizer puts
        around a prompt."""

    def decode(self, rows: Sequence[Units]) -> list[str]:
        """Return the text of each row of units."""


def tokens_of(backend: Backend) -> UnitTokens:
    """Return the backend's tokenizer. If the backend has no ``tokenize``, return tiktoken's for its
    model, or else an estimate."""
    try:
        backend.tokenize([])
    except Unsupported:
        return _published(str(getattr(backend, "model_name", "") or _served(backend)))
    return Own(backend)


class Own:
    """The backend's own tokenizer."""

    said = ""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def encode(self, texts: Sequence[str], special: bool) -> list[Units]:
        return [units(row) for row in self._backend.tokenize(texts, special)]

    def decode(self, rows: Sequence[Units]) -> list[str]:
        return self._backend.detokenize([list(row) for row in rows])


class Tiktoken:
    """OpenAI's tokenizer, from the package ``tiktoken``."""

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding
        self.said = f"counted by tiktoken ({encoding.name}), without what the service adds"

    def encode(self, texts: Sequence[str], special: bool) -> list[Units]:
        return [units(row) for row in self._encoding.encode_ordinary_batch(list(texts))]

    def decode(self, rows: Sequence[Units]) -> list[str]:
        return [str(self._encoding.decode(list(row))) for row in rows]


class Estimate:
    """An estimate: one token for every four bytes."""

    said = f"estimated: a token every {BYTES} bytes of text"

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._pieces: list[bytes] = []

    def encode(self, texts: Sequence[str], special: bool) -> list[Units]:
        return [units(self._ids(text.encode("utf-8", "replace"))) for text in texts]

    def decode(self, rows: Sequence[Units]) -> list[str]:
        return [b"".join(self._pieces[i] for i in row).decode("utf-8", "replace") for row in rows]

    def _ids(self, data: bytes) -> Iterable[int]:
        for at in range(0, len(data), BYTES):
            piece = data[at : at + BYTES]
            number = self._numbers.setdefault(piece, len(self._pieces))
            if number == len(self._pieces):
                self._pieces.append(piece)
            yield number


def _served(backend: Backend) -> str:
    return str(getattr(getattr(backend, "service", None), "model", ""))


def _published(model: str) -> UnitTokens:
    """Return the tokenizer of a model that a service runs; an estimate if tiktoken does not have
    it."""
    try:
        import tiktoken

        return Tiktoken(tiktoken.encoding_for_model(model))
    except Exception:  # not installed, not OpenAI's model, or its file cannot be downloaded
        return Estimate()
