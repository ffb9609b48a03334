"""Built-in chat templates: one file for each family of models.

The templates render only text. A family's syntax for tools is put into the messages beforehand.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

_HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in _HERE.glob("*.jinja")))

# Control tokens that identify the family of a tokenizer; the first match is used.
_FAMILIES = (
    ("llama-4", ("<|header_start|>", "<|header_end|>", "<|eot|>")),
    ("llama-3", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    ("chatml", ("<|im_start|>", "<|im_end|>")),
    ("gemma", ("<start_of_turn>", "<end_of_turn>")),
    ("deepseek", ("<｜User｜>", "<｜Assistant｜>")),
    ("mistral", ("[INST]", "[/INST]")),
    ("phi-3", ("<|user|>", "<|assistant|>", "<|end|>")),
)


def built_in(name: str) -> str | None:
    """Return the template of this name, or None."""
    return (_HERE / f"{name}.jinja").read_text(encoding="utf-8") if name in NAMES else None


def family_of(tokens: Collection[str]) -> str | None:
    """Return the name of the template for a tokenizer with these control tokens, or None."""
    return next((name for name, own in _FAMILIES if all(token in tokens for token in own)), None)
