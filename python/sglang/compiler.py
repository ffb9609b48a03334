"""Compiled programs under their documented import path."""

from sglang.program import CompiledProgram, compile, load

__all__ = ["CompiledProgram", "compile", "load"]
