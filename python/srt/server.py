"""``Engine``, ``Runtime`` and ``launch_server`` under upstream's earlier module name."""

from sglang.backend.engine.embedded import Engine
from sglang.backend.engine.launched_runtime import Runtime
from sglang.backend.engine.server_args import launch_server

__all__ = ["Engine", "Runtime", "launch_server"]
