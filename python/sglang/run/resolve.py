"""Which backend a program runs on."""

from __future__ import annotations

from typing import Any

from sglang.backend.base import Backend
from sglang.backend.settings import global_config
from sglang.run.run_scope import current_run


def resolve_backend(backend: Any) -> Backend:
    """The backend given; else that of the program which runs this one; else the default one.

    Raises ValueError where there is none, TypeError for what is no backend.
    """
    chosen, outer = backend, current_run()
    if chosen is None and outer is not None:
        chosen = outer.backend
    if chosen is None:
        chosen = global_config.default_backend
    if chosen is None:
        raise ValueError(
            "no backend: call sglang.set_default_backend(sglang.Engine()) once, "
            "or give run(..., backend=...)"
        )
    chosen = getattr(chosen, "endpoint", chosen)
    if not isinstance(chosen, Backend):
        hint = "make one of it: Engine()" if isinstance(chosen, type) else "use sgl.Engine(...)"
        raise TypeError(
            f"{chosen!r:.60} is not a backend; {hint}, or Runtime, RuntimeEndpoint, OpenAI, "
            "Anthropic, LiteLLM, Mock"
        )
    return chosen
