"""Endings: which tokens of a GGUF file end what a model writes."""

from __future__ import annotations

from sglang.srt.files.gguf import Gguf

# Files name one end token; chat models stop at others too, which are known by their text.
_NAMES = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<EOT>", "_<EOT>", "<|return|>", "<|call|>",
})  # fmt: skip
_CONTROL = 3


def endings(file: Gguf) -> tuple[int, ...]:
    """Their ids. Raises ValueError where the file names none of its tokens."""
    tokens = file.array("tokenizer.ggml.tokens", strings=True) or []
    types = file.array("tokenizer.ggml.token_type", strings=False) or []
    found = []
    for role in ("eos", "eot", "eom"):
        key = f"tokenizer.ggml.{role}_token_id"
        token = file.values.get(key)
        if token is not None:
            if type(token) is not int or not 0 <= token < len(tokens):
                raise file.error(key, f"ids must be integers in [0, {len(tokens)}).")
            found.append(token)
    named = [i for i, (t, k) in enumerate(zip(tokens, types)) if k == _CONTROL and t in _NAMES]
    return tuple(dict.fromkeys(found + named))
