# ruff: noqa: F401 (the type checker reads these imports, the names below are what is exported)
"""sglang: a language for LM programs, embedded in Python.

Importing this package imports nothing heavy; a name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sglang.version import __version__

if TYPE_CHECKING:
    from sglang.api import (
        assistant,
        assistant_begin,
        assistant_end,
        flush_cache,
        function,
        gen,
        gen_int,
        gen_string,
        get_server_info,
        image,
        inspect_history,
        select,
        separate_reasoning,
        set_default_backend,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
        video,
    )
    from sglang.backend.anthropic import Anthropic
    from sglang.backend.endpoint import RuntimeEndpoint
    from sglang.backend.engine import Engine
    from sglang.backend.litellm import LiteLLM
    from sglang.backend.mock import Mock
    from sglang.backend.openai import OpenAI
    from sglang.backend.runtime import Runtime
    from sglang.backend.server_args import ServerArgs
    from sglang.choices import (
        greedy_token_selection,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from sglang.errors import (
        BackendError,
        BatchError,
        InvalidOutput,
        ProgramError,
        SglangError,
        TraceError,
        UnknownVariable,
        Unsupported,
    )
    from sglang.forks import ForkGroup
    from sglang.program import SglFunction
    from sglang.record import Recorder, Replay
    from sglang.settings import global_config
    from sglang.state import ProgramState
    from sglang.timeline.trace import Trace
    from sglang.timeline.tracing import tracing

_HOMES = {
    "sglang.api": (
        "function", "gen", "gen_int", "gen_string", "select", "image", "video",
        "separate_reasoning",
        "system", "system_begin", "system_end", "user", "user_begin", "user_end",
        "assistant", "assistant_begin", "assistant_end",
        "set_default_backend", "flush_cache", "get_server_info", "inspect_history",
    ),
    "sglang.backend.anthropic": ("Anthropic",),
    "sglang.backend.endpoint": ("RuntimeEndpoint",),
    "sglang.backend.engine": ("Engine",),
    "sglang.backend.litellm": ("LiteLLM",),
    "sglang.backend.mock": ("Mock",),
    "sglang.backend.openai": ("OpenAI",),
    "sglang.backend.runtime": ("Runtime",),
    "sglang.backend.server_args": ("ServerArgs",),
    "sglang.choices": (
        "token_length_normalized", "greedy_token_selection",
        "unconditional_likelihood_normalized",
    ),
    "sglang.errors": (
        "BackendError", "BatchError", "InvalidOutput", "ProgramError", "SglangError", "TraceError",
        "UnknownVariable", "Unsupported",
    ),
    "sglang.program": ("SglFunction",),
    "sglang.record": ("Recorder", "Replay"),
    "sglang.settings": ("global_config",),
    "sglang.forks": ("ForkGroup",),
    "sglang.state": ("ProgramState",),
    "sglang.timeline.trace": ("Trace",),
    "sglang.timeline.tracing": ("tracing",),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'sglang' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
