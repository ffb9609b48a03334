"""``launch_server_cmd`` under the module name that upstream's notebooks import."""

from sglang.utils import launch_server_cmd

__all__ = ["launch_server_cmd"]
