"""llguidance behind the interface of grammars: JSON schemas, EBNF, tags, large patterns."""

from srt.grammar.guidance.checking import check
from srt.grammar.guidance.grammar import GuidanceGrammar
from srt.grammar.guidance.text import grammar_of

__all__ = ["GuidanceGrammar", "check", "grammar_of"]
