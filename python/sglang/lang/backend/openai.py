"""``sglang.backend.openai.openai_backend`` under upstream's name."""

from sglang.backend.openai.openai_backend import OpenAI

__all__ = ["OpenAI"]
