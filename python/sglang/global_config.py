"""The settings of the frontend under upstream's module name."""

from sglang.backend.global_settings import global_config

__all__ = ["global_config"]
