"""``sglang.backend.anthropic`` under upstream's name."""

from sglang.backend.anthropic import Anthropic

__all__ = ["Anthropic"]
