"""Sentencepiece models (``tokenizer.model``): a protobuf message, read field by field.

    ModelProto      1 pieces (repeated)   2 TrainerSpec   3 NormalizerSpec
    SentencePiece   1 text   2 score (float)   3 type
    TrainerSpec     3 kind (1 unigram, 2 BPE)   24 spaces as suffixes   35 byte fallback
                    40 unknown   41 begin   42 end
    NormalizerSpec  2 compiled map   3 space before a text   4 spaces squeezed   5 spaces escaped

Every length is checked against the bytes left before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from sglang.srt.tokenizer.tokenizer_files import MAX_TOKENS
from sglang.srt.tokenizer.tokenizer_json import NORMAL, SentencePieces


@dataclass(frozen=True)
class SentencePieceModel:
    """Pieces, and the ids of the begin and end tokens; -1: there is none."""

    pieces: SentencePieces
    begin: int
    end: int


def parse(data: bytes, prefix: bool | None = None, legacy: bool = True) -> SentencePieceModel:
    """Parse a model. ``prefix``: whether a space is put before a text; None: the model's own
    setting. Raises ValueError."""
    texts: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, int | bytes] = {}
    normal: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1:
            piece = _message(value)
            if len(texts) == MAX_TOKENS:
                raise ValueError(f"more than {MAX_TOKENS} pieces")
            try:
                texts.append(_bytes(piece.get(1, b"")).decode())
            except UnicodeDecodeError as error:
                raise ValueError(f"piece {len(texts)} is not UTF-8") from error
            scores.append(struct.unpack("<f", _bytes(piece.get(2, bytes(4)), 4))[0])
            types.append(_int(piece.get(3, NORMAL)))
        elif number == 2:
            trainer |= _message(value)
        elif number == 3:
            normal |= _message(value)
    kind = _int(trainer.get(3, 1))
    if kind not in (1, 2):
        raise ValueError(f"model type {kind}; unigram (1) and BPE (2) are read")
    if _int(trainer.get(24, 0)) or not _int(normal.get(5, 1)):
        raise ValueError("only models that write spaces as prefixes, escaped, are read")
    unknown, begin, end = (_int(trainer.get(40 + i, i), signed=True) for i in range(3))
    for token in (begin, end):
        if token >= len(texts):
            raise ValueError(f"control token {token} of {len(texts)} pieces")
    pieces = SentencePieces(
        texts, scores, types, unigram=kind == 1, unknown=unknown if unknown >= 0 else None,
        byte_fallback=bool(_int(trainer.get(35, 0))), legacy=legacy,
        prefix=bool(_int(normal.get(3, 1))) if prefix is None else prefix,
        squeeze=bool(_int(normal.get(4, 1))), charsmap=_bytes(normal.get(2, b"")),
    )  # fmt: skip
    return SentencePieceModel(pieces, max(begin, -1), max(end, -1))


def _message(value: int | bytes) -> dict[int, int | bytes]:
    """Return the last value of each field of a nested message. Raises ValueError."""
    return dict(_fields(_bytes(value)))


def _int(value: int | bytes, signed: bool = False) -> int:
    if not isinstance(value, int):
        raise ValueError("a text where a number is to be")
    if signed:  # 32 bits, sign-extended to 64
        value &= 0xFFFFFFFF
        return value - (1 << 32) if value >> 31 else value
    return value


def _bytes(value: int | bytes, size: int = -1) -> bytes:
    if isinstance(value, int) or size not in (-1, len(value)):
        raise ValueError(f"{value!r:.40} where bytes are to be")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message. Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire, -1)
        if not 0 <= size <= len(data) - at:
            raise ValueError(f"a field of {size} bytes (wire type {wire}) goes beyond its end")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(10):
        if at + i >= len(data):
            break
        byte = data[at + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise ValueError(f"no number at byte {at}")
