"""The exact bytes of every vocabulary entry.

A ``tokenizer.json`` has its vocabulary in one of two notations:

    byte-level     each byte is one printable character (GPT-2's table): "Ġthe" is b" the"
    sentencepiece  a space is "▁"; a byte without a piece of its own is "<0xNN>"

Added tokens (control tokens included) are literal text in both notations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Return the byte of each printable character of the byte-level notation.

    Printable Latin-1 bytes stand for themselves; the other 68 are numbered from U+0100 on, in
    order (Radford et al. 2019, section 2.2: byte-level BPE without unknown tokens).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + rank): byte for rank, byte in enumerate(others)})
    return alphabet


def piece_bytes(vocab: Mapping[str, int], layout: Mapping[str, Any]) -> list[bytes]:
    """Return the bytes by token id; an id without an entry has ``b""``.

    ``vocab``: ids by piece; ``layout``: the parsed ``tokenizer.json``. Raises ValueError if the
    vocabulary has neither notation.
    """
    decoders = list(_parts(layout.get("decoder"), "decoders"))
    kinds = {part["type"] for part in decoders}
    added = {entry["id"] for entry in layout.get("added_tokens") or []}
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    if "ByteLevel" in kinds:
        alphabet = byte_alphabet()
        for piece, token in vocab.items():
            literal = token in added or not all(char in alphabet for char in piece)
            table[token] = piece.encode() if literal else bytes(alphabet[char] for char in piece)
        return table
    model = layout.get("model") or {}
    space = _space(decoders)
    fallback = "ByteFallback" in kinds or bool(model.get("byte_fallback"))
    if space is None and not fallback:
        raise ValueError(
            f"the tokenizer's decoder is {sorted(kinds) or None}; "
            "only byte-level and sentencepiece-style vocabularies can be read"
        )
    for piece, token in vocab.items():
        match = _BYTE_PIECE.fullmatch(piece) if fallback else None
        if match:
            table[token] = bytes([int(match[1], 16)])
        elif token in added or not space:
            table[token] = piece.encode()
        else:
            table[token] = piece.replace(space, " ").encode()
    return table


def _parts(section: Mapping[str, Any] | None, nested: str) -> Iterator[Mapping[str, Any]]:
    """Yield a section and its nested components."""
    if section:
        yield section
        for part in section.get(nested) or []:
            yield from _parts(part, nested)


def _space(decoders: list[Mapping[str, Any]]) -> str | None:
    """Return the character that represents a space, or None."""
    for part in decoders:
        if part["type"] == "Metaspace":
            return str(part.get("replacement", "▁"))
        if part["type"] == "Replace" and part.get("content") == " ":
            return str((part.get("pattern") or {}).get("String", "▁"))
    return None
