"""Conversion of a GGUF file's tokenizer (``tokenizer.ggml.*``) to a ``tokenizer.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang.srt.files.gguf import Gguf, endings
from sglang.srt.tokenizer.split_patterns import GGUF, PATTERNS
from sglang.srt.tokenizer.tokenizer_files import MAX_TOKENS
from sglang.srt.tokenizer.tokenizer_json import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER,
    Added,
    SentencePieces,
    byte_level,
    sentencepiece,
)

_PREFIX = "tokenizer.ggml."
_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
# Patterns of tokenizers that by default put the bos token before a text.
_BEGUN = ("llama3", "tekken")


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]:
    """Return the layout (``tokenizer.json``), the configuration (``tokenizer_config.json``), and
    the ids that end a generation. Raises ValueError."""
    file = Gguf(path)
    kind = file.values.get(f"{_PREFIX}model")
    tokens = file.array(f"{_PREFIX}tokens", strings=True)
    if tokens is None:
        raise ValueError("it holds no tokenizer; give one with --tokenizer-path")
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise ValueError(f"it has {len(tokens)} tokens; 1 to {MAX_TOKENS} are read")
    types = file.array(f"{_PREFIX}token_type", strings=False) or [NORMAL] * len(tokens)
    if len(types) != len(tokens) or not all(type(t) is int for t in types):
        raise ValueError(f"it has {len(tokens)} tokens and {len(types)} types")
    if kind == "gpt2":
        layout, begins = _byte_level(file, tokens, types)
    elif kind in ("llama", "t5"):
        layout, begins = _sentencepiece(file, tokens, types, kind == "t5"), True
    else:
        raise file.error(f"{_PREFIX}model", "gpt2, llama and t5 are read.")
    config: dict[str, Any] = {}
    for role, name in _ROLES.items():
        number = file.values.get(f"{_PREFIX}{role}_token_id")
        if number is None:
            continue
        if type(number) is not int or not 0 <= number < len(tokens):
            raise file.error(f"{_PREFIX}{role}_token_id", f"there are {len(tokens)} tokens.")
        config[name] = tokens[number]
    config["add_bos_token"] = _flag(file, "add_bos_token", begins and "bos_token" in config)
    config["add_eos_token"] = _flag(file, "add_eos_token", False)
    template = file.values.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    return layout, config, endings(file)


def _flag(file: Gguf, name: str, missing: bool) -> bool:
    value = file.values.get(_PREFIX + name, missing)
    if not isinstance(value, bool):
        raise file.error(_PREFIX + name, "it must be true or false.")
    return value


def _byte_level(file: Gguf, tokens: list[str], types: list[int]) -> tuple[dict[str, Any], bool]:
    """Return the layout, and whether texts begin with the bos token."""
    name = file.values.get(f"{_PREFIX}pre", "default")
    if name not in GGUF:
        raise file.error(f"{_PREFIX}pre", f"known are {', '.join(sorted(GGUF))}.")
    merges = [
        (pair[: pair.find(" ", 1)], pair[pair.find(" ", 1) + 1 :])
        for pair in file.array(f"{_PREFIX}merges", strings=True) or []
    ]
    pattern = GGUF[str(name)]
    vocab: dict[str, int] = {}
    added = []
    for i, (text, kind) in enumerate(zip(tokens, types)):
        if kind in (CONTROL, UNKNOWN, USER) and text:
            added.append(Added(i, text, special=kind != USER))
        elif kind != UNUSED:
            vocab.setdefault(text, i)
    whole = pattern in ("llama3", "tekken", "gpt4o")
    return byte_level(vocab, merges, PATTERNS[pattern], added, whole), pattern in _BEGUN


def _sentencepiece(
    file: Gguf, tokens: list[str], types: list[int], unigram: bool
) -> dict[str, Any]:
    scores = file.array(f"{_PREFIX}scores", strings=False) or [0.0] * len(tokens)
    charsmap = file.array(f"{_PREFIX}precompiled_charsmap", strings=False) or []
    if not all(type(byte) is int and -128 <= byte < 256 for byte in charsmap):
        raise file.error(f"{_PREFIX}precompiled_charsmap", "it must be bytes.")
    unknown = file.values.get(f"{_PREFIX}unknown_token_id")
    if unknown is None:
        unknown = next((i for i, kind in enumerate(types) if kind == UNKNOWN), None)
    if unknown is not None and type(unknown) is not int:
        raise file.error(f"{_PREFIX}unknown_token_id", "it must be an id.")
    return sentencepiece(
        SentencePieces(
            tokens, scores, types, unigram=unigram, unknown=unknown,
            byte_fallback=BYTE in types, prefix=_flag(file, "add_space_prefix", True),
            squeeze=_flag(file, "remove_extra_whitespaces", unigram),
            charsmap=bytes(byte & 255 for byte in charsmap),
        )
    )  # fmt: skip
