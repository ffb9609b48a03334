"""JSON schemas as rules that are enforced in full."""

from sglang.srt.grammar.schema.schema_compiler import Compiled, compile_schema
from sglang.srt.grammar.schema.schema_document import Refusal
from sglang.srt.grammar.schema.whitespace import whitespace_pattern

__all__ = ["Compiled", "Refusal", "compile_schema", "whitespace_pattern"]
