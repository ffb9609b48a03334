"""``sglang.compile.compiler`` under its earlier name."""

from sglang.compile.compiler import CompiledProgram, compile, load

__all__ = ["CompiledProgram", "compile", "load"]
