"""Sampling parameters that a model's ``generation_config.json`` recommends."""

from __future__ import annotations

import math
from pathlib import Path

from sglang.srt.tokenizer.tokenizer_files import read_json

# Name in generation_config.json: the name in a request, and the range of values that are used.
_NAMES: dict[str, tuple[str, float, float]] = {
    "temperature": ("temperature", 0.0, 100.0),
    "top_p": ("top_p", 0.0, 1.0),
    "top_k": ("top_k", 1, 1 << 30),
    "min_p": ("min_p", 0.0, 1.0),
    "repetition_penalty": ("repetition_penalty", 0.01, 2.0),
    "max_new_tokens": ("max_tokens", 1, 1 << 30),
}


def sampling_defaults(directory: Path) -> dict[str, float]:
    """Return the recommended parameters by their names in a chat request; {} without the file.

    ``do_sample: false`` means temperature 0. Values outside a request's limits are left out. Raises
    TokenizerError if the file is not a JSON object.
    """
    if not directory.is_dir():  # a GGUF file
        return {}
    source = read_json(directory, "generation_config.json")
    found = {
        name: source[key]
        for key, (name, least, most) in _NAMES.items()
        if _is_number(source.get(key)) and least <= source[key] <= most
    }
    if source.get("do_sample") is False:
        found["temperature"] = 0.0
    return found


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
