"""Tiktoken files: a token's bytes in base64 and its rank on each line. The split pattern and the
control tokens are not in the file, but in the code of each family."""

from __future__ import annotations

import base64
import binascii
import re

from sglang.srt.tokenizer.split_patterns import GPT4O, LLAMA3, QWEN2
from sglang.srt.tokenizer.tokenizer_files import MAX_PIECE, MAX_TOKENS
from sglang.srt.tokenizer.tokenizer_json import Added

_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d{1,9}\s*")


def looks_so(data: bytes) -> bool:
    return _LINE.fullmatch(data[: data.find(b"\n") + 1 or None][:4096]) is not None


def parse(data: bytes) -> dict[bytes, int]:
    """Return the ranks by token. Raises ValueError."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        if not _LINE.fullmatch(line):
            raise ValueError(f"line {number} is no token in base64 and its rank")
        text, rank = line.split()
        try:
            token = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"line {number}: {error}") from error
        if not 0 < len(token) <= MAX_PIECE or int(rank) >= MAX_TOKENS or token in ranks:
            raise ValueError(
                f"line {number}: a token has 1 to {MAX_PIECE} bytes, a rank below {MAX_TOKENS}, and"
                " occurs once"
            )
        ranks[token] = int(rank)
    if len(set(ranks.values())) != len(ranks):
        raise ValueError("two tokens have the same rank")
    lacking = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if lacking:
        raise ValueError(f"byte {lacking[0]} has no token")
    return ranks


def family(kind: str, ranks: dict[bytes, int]) -> tuple[tuple[str, ...], list[Added], str]:
    """Return the split patterns, the control tokens and the name of the bos token ("" for none) of
    a model family. ``kind``: tokenizer class and model type of the model's configuration. Raises
    ValueError for an unknown family."""
    known = kind.lower()
    after = max(ranks.values()) + 1
    if "qwen" in known:
        names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        names += [f"<|extra_{i}|>" for i in range(205)]
        return (QWEN2,), _added(after, names), ""
    if "llama4" in known:
        return (GPT4O,), [], "<|begin_of_text|>"
    if "llama" in known:
        return (LLAMA3,), _added(after, _llama3()), "<|begin_of_text|>"
    raise ValueError(
        f"the control tokens of a tiktoken file for {kind or 'a model without a name'} are not "
        "known; known are Llama 3 and Qwen. Convert it to tokenizer.json"
    )


def _llama3() -> list[str]:
    def reserved(*numbers: int) -> list[str]:
        return [f"<|reserved_special_token_{i}|>" for i in range(*numbers)]

    return [
        "<|begin_of_text|>", "<|end_of_text|>", *reserved(2), "<|finetune_right_pad_id|>",
        *reserved(2, 3), "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
        "<|python_tag|>", *reserved(3, 248),
    ]  # fmt: skip


def _added(first: int, names: list[str]) -> list[Added]:
    return [Added(first + i, name) for i, name in enumerate(names)]
