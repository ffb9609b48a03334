"""llguidance behind the interface of grammars: JSON schemas, EBNF, tags, large patterns."""

from sglang.srt.grammar.guidance.checking import check
from sglang.srt.grammar.guidance.grammar import GuidanceGrammar
from sglang.srt.grammar.guidance.text import grammar_of

__all__ = ["GuidanceGrammar", "check", "grammar_of"]
