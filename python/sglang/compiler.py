"""Compiled programs under their documented import path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sglang.ir.graph import Graph
from sglang.program import CompiledProgram, SglFunction
from sglang.run.live_nodes import Tools

__all__ = ["CompiledProgram", "compile", "load"]


def compile(program: SglFunction, backend: Any = None, **known: Any) -> CompiledProgram:
    """Return ``program`` traced; see ``SglFunction.compile``."""
    return program.compile(backend, **known)


def load(
    path: str | os.PathLike[str], backend: Any = None, tools: Tools | None = None
) -> CompiledProgram:
    """Return a program that was saved, whose tools are the functions ``tools`` by name.

    Raise OSError, and ValueError for any other file or a tool that is not given.
    """
    graph = Graph.from_json(Path(path).read_text(encoding="utf-8"))
    return CompiledProgram(graph, backend, tools)
