"""Small tokenizers in the formats of other libraries, and those libraries' readings of them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
import tiktoken
from helpers.toy_tokenizer import CORPUS, byte_level
from sglang.srt.tokenizer.token_bytes import byte_alphabet

WORDS = [
    *CORPUS[:3],
    "low lower lowest newer newest wider; 12 345 6789  two  spaces",
    "a  b   c    d",
    "<tag> x </tag>",
]


def spm(directory: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A trained ``tokenizer.model`` in the directory."""
    out = io.BytesIO()
    settings = {
        "model_type": "bpe", "vocab_size": 380, "byte_fallback": True, "character_coverage": 0.98,
        "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
        "minloglevel": 5, "hard_vocab_limit": False, **options,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS * 4), model_writer=out, num_threads=1, **settings
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.model").write_bytes(out.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def ranks(directory: Path) -> dict[bytes, int]:
    """Tokens of a small byte-level BPE in the order of its merges, as tiktoken numbers them."""
    alphabet = byte_alphabet()
    model = json.loads((byte_level(directory) / "tokenizer.json").read_text())["model"]
    order = [bytes([byte]) for byte in range(256)]
    for left, right in model["merges"]:
        piece = bytes(alphabet[char] for char in left + right)
        if piece not in order:
            order.append(piece)
    return {piece: rank for rank, piece in enumerate(order)}


def tiktoken_file(path: Path, found: dict[bytes, int]) -> Path:
    lines = [f"{base64.b64encode(piece).decode()} {rank}\n" for piece, rank in found.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path


def reference(found: dict[bytes, int], pattern: str) -> tiktoken.Encoding:
    return tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=found, special_tokens={})


def gguf_file(path: Path, facts: Mapping[str, Any]) -> Path:
    """A file that holds nothing but ``tokenizer.*`` facts."""
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, facts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter, facts: Mapping[str, Any]) -> None:
    for name, value in facts.items():
        key = f"tokenizer.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def gguf_of_spm(theirs: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    count = theirs.get_piece_size()
    types = [
        2 if theirs.is_unknown(i) else 3 if theirs.is_control(i) else 6 if theirs.is_byte(i)
        else 5 if theirs.is_unused(i) else 1 for i in range(count)
    ]  # fmt: skip
    return {
        "ggml.model": "llama",
        "ggml.tokens": [theirs.id_to_piece(i) for i in range(count)],
        "ggml.scores": [float(theirs.get_score(i)) for i in range(count)],
        "ggml.token_type": types,
        "ggml.bos_token_id": theirs.bos_id(),
        "ggml.eos_token_id": theirs.eos_id(),
    }


def gguf_of_json(directory: Path, pre: str) -> dict[str, Any]:
    """GGUF fields of a byte-level tokenizer.json."""
    layout = json.loads((directory / "tokenizer.json").read_text())
    added = {entry["content"]: entry for entry in layout["added_tokens"]}
    ids = {**layout["model"]["vocab"], **{content: e["id"] for content, e in added.items()}}
    tokens = sorted(ids, key=ids.__getitem__)
    types = [(3 if added[t]["special"] else 4) if t in added else 1 for t in tokens]
    merges = [" ".join(pair) for pair in layout["model"]["merges"]]
    config = json.loads((directory / "tokenizer_config.json").read_text())
    return {
        "ggml.model": "gpt2", "ggml.pre": pre, "ggml.tokens": tokens, "ggml.token_type": types,
        "ggml.merges": merges, "ggml.eos_token_id": tokens.index(config["eos_token"]),
        "chat_template": config["chat_template"],
    }  # fmt: skip
