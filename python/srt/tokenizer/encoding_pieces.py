"""Pieces of a long text that can be tokenized separately, with the same ids as the whole text.

A byte-level tokenizer splits a text by a pattern, and merges bytes only within each part. No match
of the patterns known here contains a letter or digit followed by a space or newline, and no pattern
looks behind. So each of them splits every text between these two characters. The text after that
position is split as if it were alone, and so is the text before: look-ahead (for a letter, or past
spaces) has the same result. The other parts of a tokenizer must not see across the position either:
see ``can_cut``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sglang.srt.tokenizer.split_patterns import GPT2, GPT4O, LLAMA3, QWEN2, TEKKEN

PIECE = 1 << 15  # least characters of a piece
FAR = 1 << 15  # further characters that are searched for a position to cut at
_PLACE = re.compile("[A-Za-z0-9](?=[ \n])")
_WITHIN = re.compile("[A-Za-z0-9][ \n]")
_KNOWN = {GPT2, LLAMA3, QWEN2, GPT4O, TEKKEN}
_FAMILIAR = re.compile(  # the embedded model's pattern: it lists common words with their space
    r" \(\?:[A-Za-z|]+\)\(\?!\\p\{L\}\)\|" + re.escape(r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\n+| +|\s")
)


def can_cut(layout: Mapping[str, Any]) -> bool:
    """Whether the tokenizer of a parsed ``tokenizer.json`` may encode a text in ``pieces``.

    Conditions: its normalization changes nothing at the cuts, it splits by a known pattern and
    merges bytes within the parts, and no added token contains a cut or strips characters around it.
    """
    normalizer = layout.get("normalizer") or {}
    model = layout.get("model") or {}
    return (
        normalizer.get("type", "NFC") == "NFC"
        and model.get("type", "BPE") == "BPE"
        and not model.get("dropout")
        and _splits(layout.get("pre_tokenizer") or {})
        and not any(map(_sees_far, layout.get("added_tokens") or []))
    )


def _splits(before: Mapping[str, Any]) -> bool:
    """Whether texts are split by one known pattern."""
    parts: list[Mapping[str, Any]] = list(before.get("pretokenizers") or [before])
    last = parts[-1]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True) or len(parts) > 2:
        return False
    if len(parts) == 1:
        return bool(last.get("use_regex", True))  # GPT-2's own
    split = parts[0]
    pattern = (split.get("pattern") or {}).get("Regex", "")
    return (
        split.get("type") == "Split"
        and split.get("behavior") == "Isolated"
        and not split.get("invert")
        and (pattern in _KNOWN or _FAMILIAR.fullmatch(pattern) is not None)
    )


def _sees_far(token: Mapping[str, Any]) -> bool:
    flags = ("lstrip", "rstrip", "single_word")
    return any(token.get(flag) for flag in flags) or bool(_WITHIN.search(token["content"]))


def pieces(text: str) -> Iterator[str]:
    """Yield pieces of ``PIECE`` to ``PIECE + FAR`` characters. The last piece is the rest, which
    may be longer if it cannot be cut."""
    start = 0
    while len(text) - start > PIECE:
        place = _PLACE.search(text, start + PIECE - 1, start + PIECE + FAR)
        if place is None:
            break
        yield text[start : place.end()]
        start = place.end()
    yield text[start:] if start else text


def last_cut(text: str) -> int:
    """Return the last position at which the text can be cut, independent of any following text; 0:
    there is none."""
    for end in range(len(text) - 1, 0, -1):
        if text[end] in " \n" and _WITHIN.match(text, end - 1):
            return end
    return 0
