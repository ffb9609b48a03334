"""Hooks on what the language does beyond asking for what a program reads."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang import SglFunction
from sglang.backend.base import Backend, Prompt
from sglang.state import ProgramState

from benchmark.harness.hooks.patch import patched


@contextmanager
def without_hints(backend: Backend) -> Iterator[None]:
    """Send no hint: the common prefix of a batch's items is not computed before them. ``select``
    still sends the requests that it needs itself."""

    def commit(prompt: Prompt) -> dict[str, Any]:
        return {}

    async def acommit(prompt: Prompt) -> dict[str, Any]:
        return {}

    with patched(backend, commit=commit, acommit=acommit):
        yield


def sequential(program: SglFunction) -> SglFunction:
    """The same program, each node of which is visited where it is appended: branches run one after
    the other, in ``run_batch`` too. Items of a batch still run side by side, and ``program`` itself
    is left alone."""
    made = copy.copy(program)
    new_state = program.new_state

    def inline(*args: Any, **options: Any) -> ProgramState:
        return new_state(*args, **{**options, "use_thread": False})

    vars(made)["new_state"] = inline
    return made
