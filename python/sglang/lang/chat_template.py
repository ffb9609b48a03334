"""Chat templates under upstream's names."""

from __future__ import annotations

from sglang.ir.chat_template import TEMPLATES, ChatTemplate, template_for, template_named

__all__ = [
    "ChatTemplate",
    "get_chat_template",
    "get_chat_template_by_model_path",
    "register_chat_template",
]


def get_chat_template(name: str) -> ChatTemplate:
    """The template of that name. Raises ValueError for an unknown one."""
    return template_named(name)


def get_chat_template_by_model_path(model_path: str) -> ChatTemplate:
    """The template that fits the name of a model."""
    return template_for(model_path)


def register_chat_template(template: ChatTemplate) -> None:
    """Make a template known by its name, for ``chat_template_name=`` too."""
    TEMPLATES[template.name] = template
