"""``launch_server`` under upstream's module name."""

from sglang.backend.engine.server_args import launch_server

__all__ = ["launch_server"]
