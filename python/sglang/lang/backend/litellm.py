"""``sglang.backend.litellm`` under upstream's name."""

from sglang.backend.litellm import LiteLLM

__all__ = ["LiteLLM"]
