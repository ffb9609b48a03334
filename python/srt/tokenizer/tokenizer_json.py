"""Conversion of other tokenizer formats to a ``tokenizer.json``, which the library reads."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang.srt.tokenizer.control_tokens import broken
from sglang.srt.tokenizer.token_bytes import byte_alphabet
from sglang.srt.tokenizer.tokenizer_files import MAX_PIECE, MAX_TOKENS

SPACE = "▁"
# Types of a sentencepiece vocabulary, which GGUF files use too.
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


@dataclass(frozen=True)
class Added:
    """A token that is matched in a text before the text is split. ``special``: a control token."""

    id: int
    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    single_word: bool = False


def _layout(
    added: Iterable[Added], model: Mapping[str, Any], normalizer: Any, before: Any, decoder: Any
) -> dict[str, Any]:
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [vars(token) for token in sorted(added, key=lambda a: a.id)],
        "normalizer": normalizer, "pre_tokenizer": before, "post_processor": None,
        "decoder": decoder, "model": model,
    }  # fmt: skip


def _sequence(kind: str, parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return {"type": "Sequence", kind: parts}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bpe(vocab: Mapping[str, int], merges: Iterable[Sequence[str]], **more: Any) -> dict[str, Any]:
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": dict(vocab), "merges": [list(pair) for pair in merges],
    }  # fmt: skip
    return {**model, **more}


def _numbered(vocab: Mapping[str, int], added: Iterable[Added]) -> dict[str, int]:
    """Return the vocabulary. The added tokens are included if the library would number them
    otherwise: it numbers tokens that are not in the vocabulary from the vocabulary's size on."""
    tail = sorted((token.id, token.content) for token in added if token.content not in vocab)
    dense = max(vocab.values(), default=-1) == len(vocab) - 1
    if dense and [i for i, _ in tail] == list(range(len(vocab), len(vocab) + len(tail))):
        return dict(vocab)
    return {**vocab, **{content: i for i, content in tail}}


def byte_level(
    vocab: Mapping[str, int],
    merges: Iterable[Sequence[str]],
    patterns: Sequence[str],
    added: Sequence[Added] = (),
    whole: bool = True,
) -> dict[str, Any]:
    """Return the layout of a byte-level BPE over pieces in GPT-2's alphabet. A text is split by
    each of ``patterns`` in turn. ``whole``: a part that is itself a token needs no merges."""
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                "use_regex": False}  # fmt: skip
    parts = [*map(_split, patterns), bytewise]
    model = _bpe(_numbered(vocab, added), merges, ignore_merges=whole)
    return _layout(added, model, None, _sequence("pretokenizers", parts), bytewise)


def from_ranks(
    ranks: Mapping[bytes, int], patterns: Sequence[str], added: Sequence[Added]
) -> dict[str, Any]:
    """Return the layout of a byte-level BPE given only the tokens' ranks (tiktoken): the pair of
    neighbours that forms the token of the lowest rank merges first."""
    letters = {byte: char for char, byte in byte_alphabet().items()}
    spelled = {piece: "".join(letters[byte] for byte in piece) for piece in ranks}
    pairs = [
        (spelled[left], spelled[right])
        for left, right in splits(sorted(ranks, key=ranks.__getitem__), ranks)
    ]
    return byte_level({spelled[p]: i for p, i in ranks.items()}, pairs, patterns, added)


def splits(order: Iterable[Any], known: Mapping[Any, int]) -> list[tuple[Any, Any]]:
    """Return the merges: for each piece of ``order``, all pairs of known pieces that form it.
    Raises ValueError for a piece that is too long."""
    found = []
    for piece in order:
        if len(piece) > MAX_PIECE:
            raise ValueError(f"a token of {len(piece)} bytes; at most {MAX_PIECE} are read")
        ways = []
        for i in range(1, len(piece)):
            left, right = piece[:i], piece[i:]
            if left in known and right in known:
                ways.append((known[left], known[right], left, right))
        found += [(left, right) for _, _, left, right in sorted(ways)]
    return found


@dataclass(frozen=True)
class SentencePieces:
    """A sentencepiece vocabulary (Kudo and Richardson 2018).

    Attributes:
        texts, scores, types: one entry for each id; a space in a text is "▁".
        unigram: choose the most probable pieces (Kudo 2018); otherwise BPE in the order of scores.
        unknown: id of the piece for text that no other piece covers; None: there is none.
        prefix: put a space before a text. ``legacy``: before each part between control tokens;
            otherwise only before the first part.
        squeeze: remove spaces at the ends, and repeated spaces.
        charsmap: the compiled normalization map.
    """

    texts: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unigram: bool = False
    unknown: int | None = 0
    byte_fallback: bool = True
    prefix: bool = True
    legacy: bool = True
    squeeze: bool = False
    charsmap: bytes = b""


def sentencepiece(pieces: SentencePieces, more: Sequence[Added] = ()) -> dict[str, Any]:
    """Return the layout of a vocabulary. ``more``: further added tokens. Raises ValueError."""
    texts, types = pieces.texts, pieces.types
    if not 0 < len(texts) == len(pieces.scores) == len(types) <= MAX_TOKENS:
        raise ValueError(
            f"{len(texts)} tokens, {len(pieces.scores)} scores and {len(types)} types; as many of "
            f"each are needed, at most {MAX_TOKENS}"
        )
    if not all(map(math.isfinite, pieces.scores)):
        raise ValueError("a token's score is not finite")
    if pieces.unknown is not None and not 0 <= pieces.unknown < len(texts):
        raise ValueError(f"the unknown token is {pieces.unknown}, which there is not")
    named = {token.id: token for token in more}
    added = [
        Added(i, text)
        for i, (text, type) in enumerate(zip(texts, types))
        if type in (UNKNOWN, CONTROL) and i not in named
    ] + list(more)
    model = _unigram(pieces, added) if pieces.unigram else _spm_bpe(pieces, added)
    user = [] if pieces.unigram else [t for t, type in zip(texts, types) if type == USER]
    before = []
    if pieces.prefix and not pieces.legacy:
        before.append({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first",
                       "split": False})  # fmt: skip
    if user or pieces.unigram:
        hidden = {text for text, type in zip(texts, types) if type not in (NORMAL, USER)}
        before.append(_split(_isolated(user, hidden | {a.content for a in added if a.special})))
    decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
    ]}  # fmt: skip
    normal = _sequence("normalizers", _normal(pieces))
    return _layout(added, model, normal, _sequence("pretokenizers", before), decoder)


def _normal(pieces: SentencePieces) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if pieces.charsmap:
        charsmap = base64.b64encode(pieces.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if pieces.squeeze:
        for spaces, one in ((r"\A +| +\z", ""), (" {2,}", " ")):
            steps.append({"type": "Replace", "pattern": {"Regex": spaces}, "content": one})
    if pieces.prefix and pieces.legacy:
        steps.append({"type": "Prepend", "prepend": SPACE})
    return [*steps, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]


def _spm_bpe(pieces: SentencePieces, added: Sequence[Added]) -> dict[str, Any]:
    vocab: dict[str, int] = {}
    for i, text in enumerate(pieces.texts):
        vocab.setdefault(text, i)
    merged = [i for i, type in enumerate(pieces.types) if type in (NORMAL, USER)]
    merged.sort(key=lambda i: (-pieces.scores[i], i))
    texts = [pieces.texts[i] for i in merged]
    unknown = None if pieces.unknown is None else pieces.texts[pieces.unknown]
    return _bpe(
        _numbered(vocab, added), splits(texts, {text: vocab[text] for text in texts}),
        unk_token=unknown, fuse_unk=True, byte_fallback=pieces.byte_fallback,
        ignore_merges=USER in pieces.types,
    )  # fmt: skip


def _unigram(pieces: SentencePieces, added: Sequence[Added]) -> dict[str, Any]:
    """Return a unigram model. User-defined pieces score -0.1. Raises ValueError for an id gap."""
    normal = [s for s, type in zip(pieces.scores, pieces.types) if type == NORMAL]
    lowest, own = min(normal, default=0.0), -0.1  # sentencepiece's score if all others are lower

    def score(i: int) -> float:
        type = pieces.types[i]
        return own if type == USER else pieces.scores[i] if type == NORMAL else lowest

    entries = [[text, score(i)] for i, text in enumerate(pieces.texts)]
    for token in sorted(added, key=lambda a: a.id):
        if token.id > len(entries):
            raise ValueError(
                f"added token {token.content!r} has id {token.id}, after a gap in the ids"
            )
        if token.id == len(entries):
            entries.append([token.content, lowest])
    return {
        "type": "Unigram", "unk_id": pieces.unknown, "vocab": entries,
        "byte_fallback": pieces.byte_fallback,
    }  # fmt: skip


def _isolated(user: Iterable[str], hidden: Iterable[str]) -> str:
    """Return a pattern of user-defined pieces, the longest first, and of the first character of
    hidden pieces. Splitting there prevents any text from becoming a hidden piece."""
    firsts = broken(text for text in hidden if len(text) > 1)
    own = map(re.escape, sorted(user, key=len, reverse=True))
    return "|".join(filter(None, [firsts, *own])) or "(?!)"
