"""``Engine`` under upstream's module name."""

from sglang.backend.engine.embedded import Engine

__all__ = ["Engine"]
