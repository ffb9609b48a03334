"""llguidance behind the interface of grammars: JSON schemas, EBNF, tags, large patterns."""

from sglang.srt.grammar.guidance.constraint_lark import grammar_of
from sglang.srt.grammar.guidance.guidance_grammar import GuidanceGrammar
from sglang.srt.grammar.guidance.work_limits import check

__all__ = ["GuidanceGrammar", "check", "grammar_of"]
