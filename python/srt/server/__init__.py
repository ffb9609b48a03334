"""HTTP. ``Engine``, ``Runtime`` and ``launch_server`` are here under upstream's earlier names."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Engine": "sglang.backend.engine.embedded",
    "Runtime": "sglang.backend.engine.runtime",
    "launch_server": "sglang.srt.entrypoints.http_server",
}

__all__ = ["Engine", "Runtime", "launch_server"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
