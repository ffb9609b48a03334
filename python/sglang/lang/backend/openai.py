"""``sglang.backend.openai`` under upstream's name."""

from sglang.backend.openai import OpenAI

__all__ = ["OpenAI"]
