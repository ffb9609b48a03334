"""Regular expressions as Python's ``re`` reads them, made into automata over characters."""

from sglang.srt.grammar.regex.budget import BeyondBudget, Budget, InvalidPattern
from sglang.srt.grammar.regex.regex_compiler import compile_regex

__all__ = ["BeyondBudget", "Budget", "InvalidPattern", "compile_regex"]
