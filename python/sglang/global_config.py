"""The settings of the frontend under upstream's module name."""

from sglang.backend.settings import global_config

__all__ = ["global_config"]
