"""``Engine``, ``Runtime`` and ``launch_server`` under the module name of earlier releases."""

from sglang.backend.engine import Engine
from sglang.backend.runtime import Runtime
from sglang.srt.entrypoints.http_server import launch_server

__all__ = ["Engine", "Runtime", "launch_server"]
