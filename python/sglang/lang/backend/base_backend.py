"""``sglang.backend.base`` under upstream's name."""

from sglang.backend.base import Backend

BaseBackend = Backend

__all__ = ["BaseBackend"]
