"""``sglang.ir.chat_template`` under its earlier name."""

from sglang.ir.chat_template import TEMPLATES, ChatTemplate, template_for, template_named

__all__ = ["TEMPLATES", "ChatTemplate", "template_for", "template_named"]
