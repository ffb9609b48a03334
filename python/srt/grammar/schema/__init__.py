"""JSON schemas: what of them is enforced, and how."""

from sglang.srt.grammar.schema.compile import Compiled, compile_schema
from sglang.srt.grammar.schema.document import Refusal
from sglang.srt.grammar.schema.whitespace import whitespace_pattern

__all__ = ["Compiled", "Refusal", "compile_schema", "whitespace_pattern"]
