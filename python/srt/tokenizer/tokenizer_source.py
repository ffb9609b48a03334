"""TokenizerSource: a tokenizer that was read from any of the supported file formats.

A directory is searched, in this order, for ``tokenizer.json``; ``tokenizer.model`` (sentencepiece,
or tiktoken's format under that name); ``*.tiktoken``; ``vocab.json`` with ``merges.txt``; a GGUF
file. All of them become a ``tokenizer.json``, which the library reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang.srt.files.location import gguf_of
from sglang.srt.tokenizer import gguf_tokenizer, spm_file, tiktoken
from sglang.srt.tokenizer.split_patterns import PATTERNS
from sglang.srt.tokenizer.tokenizer_files import (
    MAX_FILE,
    MAX_TOKENS,
    TokenizerError,
    read_bytes,
    read_json,
    read_text,
    told,
)
from sglang.srt.tokenizer.tokenizer_json import Added, byte_level, from_ranks, sentencepiece

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


@dataclass(frozen=True)
class TokenizerSource:
    """The parts of a tokenizer.

    Attributes:
        path: the file that was read, for messages.
        layout: a parsed ``tokenizer.json``. text: its JSON text.
        config: a parsed ``tokenizer_config.json``.
        ends: ids that end a generation, in addition to the configuration's end token.
    """

    path: Path
    layout: dict[str, Any]
    text: str
    config: dict[str, Any] = field(default_factory=dict)
    ends: tuple[int, ...] = ()


def read(path: Path) -> TokenizerSource:
    """Read a directory or a GGUF file. Raises TokenizerError, naming the file."""
    if not path.is_dir():
        return _gguf(path)
    config = _config(path)
    for reader in (_json, _model, _tiktoken, _merges):
        source = reader(path, config)
        if source is not None:
            return source
    with told(path):
        file = gguf_of(path)
    if file is not None:
        return _gguf(file)
    raise TokenizerError(
        f"no tokenizer.json in {path}, nor a tokenizer.model, *.tiktoken, vocab.json with "
        "merges.txt or *.gguf; convert the model's tokenizer to one of them"
    )


def _made(
    path: Path, layout: dict[str, Any], config: dict[str, Any], ends: Any = ()
) -> TokenizerSource:
    return TokenizerSource(
        path, layout, json.dumps(layout, ensure_ascii=False), config, tuple(ends)
    )


def _gguf(path: Path) -> TokenizerSource:
    with told(path):
        layout, config, ends = gguf_tokenizer.read(path)
    return _made(path, layout, config, ends)


# -- the files of a directory ---------------------------------------------------------------------


def _json(directory: Path, config: dict[str, Any]) -> TokenizerSource | None:
    path, text = directory / "tokenizer.json", read_text(directory, "tokenizer.json", MAX_FILE)
    if text is None:
        return None
    with told(path):
        layout = json.loads(text)
        if not isinstance(layout, dict):
            raise ValueError("it is not a JSON object")
    return TokenizerSource(path, layout, text, config, _ends(directory))


def _model(directory: Path, config: dict[str, Any]) -> TokenizerSource | None:
    path, data = directory / "tokenizer.model", read_bytes(directory, "tokenizer.model", MAX_FILE)
    if data is None:
        return None
    if tiktoken.looks_so(data):
        return _ranks(directory, path, data, config)
    with told(path):
        prefix = config.get("add_prefix_space")
        legacy = config.get("legacy") is not False
        model = spm_file.parse(data, prefix if isinstance(prefix, bool) else None, legacy)
        layout = sentencepiece(model.pieces, _more(directory, config))
        texts = model.pieces.texts
        for role, token in (("bos_token", model.begin), ("eos_token", model.end)):
            if token >= 0:
                config.setdefault(role, texts[token])
        config.setdefault("add_bos_token", model.begin >= 0)
    return _made(path, layout, config, _ends(directory))


def _tiktoken(directory: Path, config: dict[str, Any]) -> TokenizerSource | None:
    found = sorted(file.name for file in directory.glob("*.tiktoken"))
    if not found:
        return None
    if len(found) > 1:
        raise TokenizerError(f"{directory} has {len(found)} tiktoken files: {', '.join(found[:4])}")
    data = read_bytes(directory, found[0], MAX_FILE)
    return None if data is None else _ranks(directory, directory / found[0], data, config)


def _ranks(directory: Path, path: Path, data: bytes, config: dict[str, Any]) -> TokenizerSource:
    with told(path):
        ranks = tiktoken.parse(data)
        model = read_json(directory, "config.json")
        kind = f"{config.get('tokenizer_class') or ''} {model.get('model_type') or ''}"
        patterns, added, begin = tiktoken.family(kind.strip(), ranks)
        added = _more(directory, config) or added
        layout = from_ranks(ranks, patterns, added)
        if begin:
            config.setdefault("bos_token", begin)
            config.setdefault("add_bos_token", True)
            config.setdefault("eos_token", "<|end_of_text|>")
        else:
            config.setdefault("eos_token", "<|endoftext|>")
    ends = [a.id for a in added if a.content in ("<|eot_id|>", "<|eom_id|>", "<|im_end|>")]
    return _made(path, layout, config, (*_ends(directory), *ends))


def _merges(directory: Path, config: dict[str, Any]) -> TokenizerSource | None:
    text = read_text(directory, "merges.txt", MAX_FILE)
    path, vocab = directory / "vocab.json", read_text(directory, "vocab.json", MAX_FILE)
    if text is None or vocab is None:
        return None
    with told(path):
        ids = json.loads(vocab)
        if not isinstance(ids, dict) or any(type(i) is not int for i in ids.values()):
            raise ValueError("it does not map tokens to ids")
        lines = [line for line in text.split("\n") if line and not line.startswith("#version")]
        pairs = [line.split(" ") for line in lines]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("a line of merges.txt is not two tokens")
        qwen = "qwen" in str(config.get("tokenizer_class")).lower()
        added = _more(directory, config)
        if not added and ids.get("<|endoftext|>") is not None:  # GPT-2's only control token
            added = [Added(ids["<|endoftext|>"], "<|endoftext|>")]
            config.setdefault("eos_token", "<|endoftext|>")
        pattern = PATTERNS["qwen2" if qwen else "gpt2"]
        layout = byte_level(ids, pairs, pattern, added, whole=False)
    return _made(path, layout, config, _ends(directory))


# -- other files ----------------------------------------------------------------------------------


def _config(directory: Path) -> dict[str, Any]:
    """Return the values of ``tokenizer_config.json``; missing ones are read from other files."""
    named = read_json(directory, "special_tokens_map.json")
    config = {k: v for k, v in named.items() if k in _ROLES}
    config |= read_json(directory, "tokenizer_config.json")
    template = read_text(directory, "chat_template.jinja")
    if not template and "chat_template" not in config:
        template = read_json(directory, "chat_template.json").get("chat_template")
    if template:
        config["chat_template"] = template
    return config


def _ends(directory: Path) -> tuple[int, ...]:
    ends: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = read_json(directory, name).get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if token is not None:
                ends.append(token_id(token, f"{directory / name}: eos_token_id"))
    return tuple(dict.fromkeys(ends))


def token_id(value: Any, what: str) -> int:
    """Return ``value`` if it is a valid token id. Otherwise raises TokenizerError. ``what``: name
    of the value in the message."""
    if type(value) is not int or not 0 <= value < MAX_TOKENS:
        raise TokenizerError(f"{what} is {value!r:.80}; ids are integers in [0, {MAX_TOKENS})")
    return value


def _more(directory: Path, config: Mapping[str, Any]) -> list[Added]:
    """Return the added tokens that a model's configuration lists. Raises TokenizerError."""
    found: dict[int, Added] = {}
    for content, number in read_json(directory, "added_tokens.json").items():
        number = token_id(number, f"{directory / 'added_tokens.json'}: {content!r:.40}")
        found[number] = Added(number, content, special=False)
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise TokenizerError(f"{directory}: added_tokens_decoder is not an object")
    for key, entry in listed.items():
        text = entry.get("content") if isinstance(entry, dict) else None
        if not re.fullmatch(r"\d{1,9}", key) or not isinstance(text, str) or not text:
            raise TokenizerError(
                f"{directory}: added_tokens_decoder has {key!r:.40}: {entry!r:.80}"
            )
        number = token_id(int(key), "added_tokens_decoder: an id")
        flags = ("special", "lstrip", "rstrip", "normalized", "single_word")
        found[number] = Added(number, text, **{f: entry.get(f) is True for f in flags})
    return [found[number] for number in sorted(found)]
