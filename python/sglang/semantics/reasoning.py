"""Reasoning: the thoughts that a model writes before its answer, recognised by its markers."""

from __future__ import annotations

import re
from typing import NamedTuple


class Markers(NamedTuple):
    """Regular expressions of what opens and closes the reasoning.

    ``always``: the model always reasons first, and its chat template may already have written the
    opening marker into the prompt.
    """

    opening: str
    closing: str
    always: bool = False


THINK = Markers(r"<think>", r"</think>")
ALWAYS_THINK = THINK._replace(always=True)
MARKERS = {
    "deepseek-r1": ALWAYS_THINK,
    "deepseek-v3": THINK,
    "glm45": THINK,
    # The channels of the harmony format. A text decoded without special tokens has none of them.
    "gpt-oss": Markers(
        r"<\|channel\|>analysis<\|message\|>",
        r"(<\|end\|>)?(<\|start\|>assistant)?<\|channel\|>final<\|message\|>",
        always=True,
    ),
    "kimi": Markers("◁think▷", "◁/think▷"),
    "kimi_k2": THINK,
    "minimax": ALWAYS_THINK,
    "mistral": Markers(r"\[THINK\]", r"\[/THINK\]"),
    "qwen3": THINK,
    "qwen3-thinking": ALWAYS_THINK,
    "seed-oss": Markers(r"<seed:think>", r"</seed:think>"),
    "step3": ALWAYS_THINK,
}


def split(text: str, model_type: str, growing: bool = False) -> tuple[str, str]:
    """(reasoning, answer) of a reply, whole or still growing; whitespace between them is dropped.

    A reply that was cut off while reasoning has no answer. So has one without any marker, where
    the model type always reasons; for the other types it is all answer. While a reply is
    ``growing`` its answer only grows: what may still become an opening marker is neither.

    Raises ValueError for an unknown ``model_type``.
    """
    if model_type not in MARKERS:
        raise ValueError(f"model_type is {model_type!r}; use one of {', '.join(MARKERS)}")
    opening, closing, always = MARKERS[model_type]
    begin = re.match(rf"\s*{opening}", text)
    if begin is None and not always:
        literal = opening.replace("\\", "")
        return "", "" if growing and literal.startswith(text.lstrip()) else text
    start = begin.end() if begin else 0
    end = re.search(closing, text)
    if end is None:
        return text[start:].strip(), ""
    return text[start : end.start()].strip(), text[end.end() :].lstrip()
