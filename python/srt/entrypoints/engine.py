"""``Engine`` under upstream's module name."""

from sglang.backend.engine import Engine

__all__ = ["Engine"]
