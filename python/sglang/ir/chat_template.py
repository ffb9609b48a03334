"""Chat templates: the text that opens and closes the turn of each role, chosen by the model.

A template is data. The one irregular family puts the system message into the first user turn; it
has a flag (``fold_system``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template. ``roles`` maps a role to the texts before and after its turn."""

    name: str
    roles: Mapping[str, tuple[str, str]]
    stop: tuple[str, ...] = ()
    default_system: str | None = None
    fold_system: bool = False
    image_token: str = "<image>"
    video_token: str = "<video>"

    def marker(self, kind: str) -> str:
        """Return the text that stands for an image or a video (``kind``)."""
        return self.video_token if kind == "video" else self.image_token

    def seeing(self, placeholders: Mapping[str, str]) -> ChatTemplate:
        """Return the template with a model's own placeholders for images and videos."""
        return replace(
            self,
            image_token=placeholders.get("image", self.image_token),
            video_token=placeholders.get("video", self.video_token),
        )

    def around(self, role: str, messages: Sequence[Message]) -> tuple[str, str]:
        """Return the prefix and suffix of a turn of ``role`` after ``messages``. Raises ValueError
        for an unknown role.

        With ``fold_system`` the system text is inside the first user turn. The system message then
        opens that turn, so the user message does not open it again. Results of tools, role "tool",
        are turns of the user unless ``roles`` has "tool".
        """
        if role == "tool" and role not in self.roles:
            before, after = self.roles["user"]
            return before + "<tool_response>\n", "\n</tool_response>" + after
        if role not in self.roles:
            raise ValueError(
                f"chat template {self.name!r} has no role {role!r}; it has {list(self.roles)}"
            )
        prefix, suffix = self.roles[role]
        if self.fold_system and role == "user" and [m["role"] for m in messages] == ["system"]:
            prefix = ""
        if self.fold_system and role == "system":
            prefix = self.roles["user"][0] + prefix
        return prefix, suffix

    def opening(self, role: str, messages: Sequence[Message]) -> tuple[str, list[dict[str, Any]]]:
        """Return the text that opens a turn of ``role`` after ``messages``, and the turns in it.

        The default system turn comes before a first turn of another role. Raise ValueError for an
        unknown role.
        """
        if not self.default_system or messages or role == "system":
            return self.around(role, messages)[0], []
        before, after = self.around("system", messages)
        implied = [{"role": "system", "content": self.default_system}]
        return before + self.default_system + after + self.around(role, implied)[0], implied


def _marked(name: str, begin: str, end: str, *, tool: str = "", **options: object) -> ChatTemplate:
    roles = {role: (begin.format(role=role), end) for role in ("system", "user", "assistant")}
    if tool:
        roles["tool"] = (begin.format(role=tool), end)
    stop = (end.strip(),)
    return ChatTemplate(name, roles, stop=stop, **options)  # type: ignore[arg-type]


TEMPLATES = {
    t.name: t
    for t in (
        ChatTemplate(
            "default",
            {
                "system": ("SYSTEM:", "\n"),
                "user": ("USER:", "\n"),
                "assistant": ("ASSISTANT:", "\n"),
            },
        ),
        _marked("chatml", "<|im_start|>{role}\n", "<|im_end|>\n"),
        _marked(
            "qwen",
            "<|im_start|>{role}\n",
            "<|im_end|>\n",
            default_system="You are a helpful assistant.",
        ),
        _marked(
            "llama-3-instruct",
            "<|start_header_id|>{role}<|end_header_id|>\n\n",
            "<|eot_id|>",
            tool="ipython",
        ),
        ChatTemplate(
            "llama-2-chat",
            {
                "system": ("<<SYS>>\n", "\n<</SYS>>\n\n"),
                "user": ("[INST] ", " [/INST]"),
                "assistant": ("", " </s><s>"),
            },
            stop=("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),
            fold_system=True,
        ),
        ChatTemplate(
            "mistral",
            {
                "system": ("", "\n\n"),
                "user": ("[INST] ", " [/INST]"),
                "assistant": ("", "</s>"),
                "tool": ('[TOOL_RESULTS] {"content": ', "}[/TOOL_RESULTS]"),
            },
            stop=("</s>",),
            fold_system=True,
        ),
        ChatTemplate(
            "gemma-it",
            {
                "system": ("", "\n\n"),
                "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
                "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
            },
            stop=("<end_of_turn>",),
            fold_system=True,
        ),
        ChatTemplate(
            "vicuna",
            {"system": ("", " "), "user": ("USER: ", " "), "assistant": ("ASSISTANT: ", "</s>")},
            stop=("USER:", "</s>"),
        ),
    )
}

# First match wins. A model's own jinja template is recognised by its markers, a path by its name.
MARKERS = (
    ("<|im_start|>", "chatml"),
    ("<|start_header_id|>", "llama-3-instruct"),
    ("<start_of_turn>", "gemma-it"),
    ("<<SYS>>", "llama-2-chat"),
    ("[INST]", "mistral"),
)
MODEL_NAMES = (
    (r"sglang-tiny|chatml|hermes", "chatml"),
    (r"qwen.*base", "default"),
    (r"qwen", "qwen"),
    (r"llama-?3.*instruct", "llama-3-instruct"),
    (r"llama-?2.*chat|codellama.*instruct", "llama-2-chat"),
    (r"mi[sx]tral.*instruct|ministral", "mistral"),
    (r"gemma.*it", "gemma-it"),
    (r"vicuna|llava-v1", "vicuna"),
)


def template_named(name: str) -> ChatTemplate:
    """Return the chat template of a name. Raises ValueError for an unknown name."""
    if name not in TEMPLATES:
        raise ValueError(f"no chat template {name!r}; use one of {sorted(TEMPLATES)}")
    return TEMPLATES[name]


def template_for(model_path: str, jinja: str | None = None) -> ChatTemplate:
    """Return the template of a model: by the name in ``model_path``, then by the markers in its own
    template ``jinja``, else "default"."""
    for pattern, name in MODEL_NAMES:
        if re.search(pattern, model_path.rstrip("/").rsplit("/", 1)[-1], re.IGNORECASE):
            return TEMPLATES[name]
    for marker, name in MARKERS:
        if jinja and marker in jinja:
            return TEMPLATES[name]
    return TEMPLATES["default"]
