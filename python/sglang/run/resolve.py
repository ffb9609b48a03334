"""Choice of the backend that a program runs on."""

from __future__ import annotations

from typing import Any

from sglang.backend.base import Backend, checked_backend
from sglang.run.run_scope import current_run


def resolve_backend(backend: Any) -> Backend:
    """Return the given backend; else that of the program which runs this one; else the default.

    Raise ValueError where there is none, TypeError for a value that is no backend.
    """
    if backend is None and (outer := current_run()) is not None:
        backend = outer.backend
    return checked_backend(backend)
