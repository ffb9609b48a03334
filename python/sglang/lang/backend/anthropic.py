"""``sglang.backend.anthropic.anthropic_backend`` under upstream's name."""

from sglang.backend.anthropic.anthropic_backend import Anthropic

__all__ = ["Anthropic"]
