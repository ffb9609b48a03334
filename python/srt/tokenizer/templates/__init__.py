"""Built-in chat templates: one file each, named by the family of models that was taught it.

They write text only. What a family writes for tools goes into the messages before.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

_HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in _HERE.glob("*.jinja")))

# Control tokens by which a tokenizer shows its family; the first that fits wins.
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
    """The template of that name, None where there is none."""
    return (_HERE / f"{name}.jinja").read_text(encoding="utf-8") if name in NAMES else None


def family_of(tokens: Collection[str]) -> str | None:
    """Name of the template for a tokenizer with these control tokens."""
    return next((name for name, own in _FAMILIES if all(token in tokens for token in own)), None)
