# ruff: noqa: I001 ("name as name" is how a type checker knows an exported name)
"""sglang: a language for LM programs, embedded in Python.

Importing this package imports nothing heavy; a name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sglang.version import __version__

if TYPE_CHECKING:
    from sglang.api import (
        assistant as assistant,
        assistant_begin as assistant_begin,
        assistant_end as assistant_end,
        flush_cache as flush_cache,
        function as function,
        gen as gen,
        gen_int as gen_int,
        gen_string as gen_string,
        get_server_info as get_server_info,
        image as image,
        inspect_history as inspect_history,
        select as select,
        separate_reasoning as separate_reasoning,
        set_default_backend as set_default_backend,
        system as system,
        system_begin as system_begin,
        system_end as system_end,
        tool as tool,
        transforms as transforms,
        user as user,
        user_begin as user_begin,
        user_end as user_end,
        video as video,
    )
    from sglang.backend.anthropic.anthropic_backend import Anthropic as Anthropic
    from sglang.backend.engine.embedded import Engine as Engine
    from sglang.backend.engine.inferlet_client import InferletClient as InferletClient
    from sglang.backend.engine.launched_runtime import Runtime as Runtime
    from sglang.backend.engine.server_args import ServerArgs as ServerArgs
    from sglang.backend.global_settings import global_config as global_config
    from sglang.backend.litellm import LiteLLM as LiteLLM
    from sglang.backend.mock import Mock as Mock
    from sglang.backend.native.endpoint import RuntimeEndpoint as RuntimeEndpoint
    from sglang.backend.openai.openai_backend import OpenAI as OpenAI
    from sglang.backend.record.call_recorder import Recorder as Recorder, Replay as Replay
    from sglang.errors import (
        BackendError as BackendError,
        BatchError as BatchError,
        InvalidOutput as InvalidOutput,
        ProgramError as ProgramError,
        SglangError as SglangError,
        ToolError as ToolError,
        TraceError as TraceError,
        UnknownVariable as UnknownVariable,
        Unsupported as Unsupported,
    )
    from sglang.integrations.semantic_function import semantic_function as semantic_function
    from sglang.ir.choices import (
        constrained_decoding as constrained_decoding,
        greedy_token_selection as greedy_token_selection,
        token_length_normalized as token_length_normalized,
        unconditional_likelihood_normalized as unconditional_likelihood_normalized,
    )
    from sglang.program import SglFunction as SglFunction
    from sglang.state import ForkGroup as ForkGroup, ProgramState as ProgramState
    from sglang.views.timeline.trace import Trace as Trace
    from sglang.views.timeline.tracing import tracing as tracing

_HOMES = {
    "sglang.api": (
        "function", "gen", "gen_int", "gen_string", "select", "image", "video",
        "separate_reasoning", "tool", "transforms",
        "system", "system_begin", "system_end", "user", "user_begin", "user_end",
        "assistant", "assistant_begin", "assistant_end",
        "set_default_backend", "flush_cache", "get_server_info", "inspect_history",
    ),
    "sglang.backend.anthropic.anthropic_backend": ("Anthropic",),
    "sglang.backend.native.endpoint": ("RuntimeEndpoint",),
    "sglang.backend.engine.embedded": ("Engine",),
    "sglang.backend.engine.inferlet_client": ("InferletClient",),
    "sglang.backend.litellm": ("LiteLLM",),
    "sglang.backend.mock": ("Mock",),
    "sglang.backend.openai.openai_backend": ("OpenAI",),
    "sglang.backend.engine.launched_runtime": ("Runtime",),
    "sglang.backend.engine.server_args": ("ServerArgs",),
    "sglang.ir.choices": (
        "token_length_normalized", "greedy_token_selection",
        "unconditional_likelihood_normalized", "constrained_decoding",
    ),
    "sglang.errors": (
        "BackendError", "BatchError", "InvalidOutput", "ProgramError", "SglangError", "ToolError",
        "TraceError", "UnknownVariable", "Unsupported",
    ),
    "sglang.integrations.semantic_function": ("semantic_function",),
    "sglang.program": ("SglFunction",),
    "sglang.backend.record.call_recorder": ("Recorder", "Replay"),
    "sglang.backend.global_settings": ("global_config",),
    "sglang.state": ("ForkGroup", "ProgramState"),
    "sglang.views.timeline.trace": ("Trace",),
    "sglang.views.timeline.tracing": ("tracing",),
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
