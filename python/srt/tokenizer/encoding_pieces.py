"""Pieces of a long text that may be tokenized one by one, with the ids of the whole.

A byte-level tokenizer splits a text by a pattern and merges bytes within each split alone. In none
of the patterns known here is a letter or digit of a match followed by a space or newline, and none
looks behind itself. So every text is split between the two. The rest is split as if the text began
there, and the part before as if the text ended there: a pattern that looks ahead (for a letter, or
past spaces) finds the same. The other parts of a tokenizer must not see across that position
either: see ``can_cut``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sglang.srt.tokenizer.split_patterns import GPT2, GPT4O, LLAMA3, QWEN2, TEKKEN

PIECE = 1 << 15  # characters, at least
FAR = 1 << 15  # further characters that are searched for a position to cut at
_PLACE = re.compile("[A-Za-z0-9](?=[ \n])")
_WITHIN = re.compile("[A-Za-z0-9][ \n]")
_KNOWN = {GPT2, LLAMA3, QWEN2, GPT4O, TEKKEN}
_FAMILIAR = re.compile(  # common words with their space; that of the embedded model
    r" \(\?:[A-Za-z|]+\)\(\?!\\p\{L\}\)\|" + re.escape(r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\n+| +|\s")
)


def can_cut(layout: Mapping[str, Any]) -> bool:
    """Whether the tokenizer of a parsed ``tokenizer.json`` may be given a text in ``pieces``.

    Its normal form changes nothing there. It splits by a known pattern and merges bytes within the
    splits. No added token holds such a position, or takes in characters around it.
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
    """The text in pieces of ``PIECE`` characters and up to ``FAR`` more. The last piece is the
    rest, which is long where it cannot be cut."""
    start = 0
    while len(text) - start > PIECE:
        place = _PLACE.search(text, start + PIECE - 1, start + PIECE + FAR)
        if place is None:
            break
        yield text[start : place.end()]
        start = place.end()
    yield text[start:] if start else text


def last_cut(text: str) -> int:
    """The last position at which the text can be cut, whatever follows it; 0: there is none."""
    for end in range(len(text) - 1, 0, -1):
        if text[end] in " \n" and _WITHIN.match(text, end - 1):
            return end
    return 0
