"""Vocabularies to test grammars with: a toy one, the embedded model's, and one of 131 k tokens."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.tokenizer.token_bytes import piece_bytes

EMBEDDED = Path(__file__).parents[2] / "python" / "srt" / "assets" / "sglang-tiny"

# Bytes by themselves, pieces of a few characters, pieces that end or begin inside one, a control
# token that looks like text, an id without bytes, and two ids with the same bytes.
TOY: tuple[bytes, ...] = (
    b"</s>",
    b"<pad>",
    b"",
    *(bytes([byte]) for byte in b'ab01 "{}:,.-\n'),
    *(bytes([byte]) for byte in "é€🙂日".encode()),
    *(piece.encode() for piece in ("ab", "ba", "aab", "abab", "01", "10", '{"', '":', '"a', 'b"')),
    *(piece.encode() for piece in ("é", "€", "🙂", "aé", "€b", " a", " b", "  ", "a,b", "日€")),
    "🙂".encode()[:2],
    "🙂".encode()[:3],
    "🙂".encode()[2:],
    "€".encode()[:2],
    "€".encode()[1:],
    b"a" + "€".encode()[:1],
    b"a" + "€".encode()[:2],
    "€".encode()[2:] + b"ab",
    "€é".encode()[1:4],
    "é".encode()[1:] + "é".encode()[:1],
    b"\xff",
    b"a\xed\xa0",
    b"ab",
)
TOY_EOS, TOY_SPECIAL = (0,), frozenset({0, 1})


def toy() -> Vocabulary:
    """A few dozen tokens; canonical is the greedy longest match from the left, and a byte 0xFF for
    each byte that no token writes."""
    known = {data: token for token, data in reversed(list(enumerate(TOY)))
             if data and token not in TOY_SPECIAL}  # fmt: skip

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [_greedy(text.encode(), known) for text in texts]

    return Vocabulary(TOY, len(TOY) + 3, TOY_EOS, TOY_SPECIAL, encode)


def _greedy(data: bytes, known: dict[bytes, int]) -> list[int]:
    found, at = [], 0
    while at < len(data):
        piece = next(
            (data[at:end] for end in range(len(data), at, -1) if data[at:end] in known), b"\xff"
        )
        found.append(known[piece])
        at += len(piece)
    return found


@lru_cache(maxsize=1)
def embedded() -> Vocabulary:
    """The embedded model's 3,072 tokens."""
    from tokenizers import Tokenizer

    layout = json.loads((EMBEDDED / "tokenizer.json").read_text())
    model = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    model.encode_special_tokens = True
    special = frozenset(entry["id"] for entry in layout["added_tokens"] if entry["special"])
    tokens = tuple(piece_bytes(model.get_vocab(with_added_tokens=True), layout))

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in model.encode_batch_fast(list(texts), False, False)]

    return Vocabulary(tokens, len(tokens), (0, 2), special, encode)


@lru_cache(maxsize=1)
def tekken() -> Vocabulary:
    """Tekken of 2024-09-11: 131,072 ids, the first 1,000 of them control tokens."""
    import mistral_common
    import tiktoken

    path = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    source = json.loads(path.read_text())
    control = int(source["config"]["default_num_special_tokens"])
    size = int(source["config"]["default_vocab_size"])
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"]
             for entry in source["vocab"][: size - control]}  # fmt: skip
    model = tiktoken.Encoding("tekken", pat_str=source["config"]["pattern"],
                              mergeable_ranks=ranks, special_tokens={})  # fmt: skip
    tokens = [b""] * control + sorted(ranks, key=ranks.__getitem__)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [[rank + control for rank in model.encode_ordinary(text)] for text in texts]

    return Vocabulary(tuple(tokens), size, (2,), frozenset(range(control)), encode)
