"""The ways in which models write calls, and which of them a model was taught."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from sglang.ir.chat_template import ChatTemplate
from sglang.semantics.tool_calls.tool_format import ToolFormat
from sglang.semantics.tool_calls.tool_formats.hermes import Hermes
from sglang.semantics.tool_calls.tool_formats.llama3 import Llama3
from sglang.semantics.tool_calls.tool_formats.mistral import BY_NAME, Mistral
from sglang.semantics.tool_calls.tool_formats.pythonic import Pythonic
from sglang.semantics.tool_calls.tool_formats.tiny import Tiny

__all__ = [
    "FORMATS", "Hermes", "Llama3", "Mistral", "Pythonic", "Tiny", "format_for", "format_named",
    "with_tool_turns",
]  # fmt: skip

FORMATS: dict[str, Callable[[], ToolFormat]] = {
    "hermes": Hermes,
    "qwen": Hermes,
    "llama3": Llama3,
    "mistral": Mistral,
    "pythonic": Pythonic,
    "tiny": Tiny,
}
# First match wins. A template that writes calls says how; else the model's name and class do.
_TEMPLATES = (
    (r"<tool_call>", "hermes"),
    (r"\[TOOL_CALLS\]", "mistral"),
    (r"<\|python_start\|>|\[func_name1\(|func_name1\(params_name1", "pythonic"),
    (r"<\|python_tag\|>|\"parameters\": dictionary|'\"parameters\": '", "llama3"),
)
_MODELS = (
    (r"sglang-tiny", "tiny"),
    (r"hermes|qwen", "hermes"),
    (r"mi[sx]tral|ministral|magistral|devstral", "mistral"),
    (r"llama-?4", "pythonic"),
    (r"llama-?3", "llama3"),
)


def format_for(name: str, template: str, *models: str) -> ToolFormat:
    """The format of that name; of ``auto``, the one that the chat template writes, or that the
    model, by its path or class, was taught. Where neither says it, Hermes."""
    if name == "auto":
        name = _found(template, models)
    return format_named(BY_NAME if name == "mistral" and "[ARGS]" in template else name)


def format_named(name: str) -> ToolFormat:
    """The format whose ``name`` this is. Raise ValueError for an unknown one."""
    if name == BY_NAME:
        return Mistral(by_name=True)
    if name not in FORMATS:
        raise ValueError(f"no format of calls is named {name!r:.60}; use one of {sorted(FORMATS)}")
    return FORMATS[name]()


def with_tool_turns(template: ChatTemplate, name: str) -> ChatTemplate:
    """The template of programs, with turns of the results of tools as models of the format
    ``name`` read them."""
    if name == "tiny":
        before, after = template.roles["user"]
        roles = {**template.roles, "tool": (f"{before}<result>", f"</result>{after}")}
        return replace(template, roles=roles)
    return template


def _found(template: str, models: tuple[str, ...]) -> str:
    for pattern, name in _TEMPLATES:
        if re.search(pattern, template):
            return name
    for model in models:
        for pattern, name in _MODELS:
            if re.search(pattern, model, re.IGNORECASE):
                return name
    return "hermes"
