"""JSON schemas: what of them is enforced, and how."""

from srt.grammar.schema.compile import Compiled, compile_schema
from srt.grammar.schema.document import Refusal
from srt.grammar.schema.whitespace import whitespace_pattern

__all__ = ["Compiled", "Refusal", "compile_schema", "whitespace_pattern"]
