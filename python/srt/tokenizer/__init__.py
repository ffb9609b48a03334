"""Text to token ids and back: every token is a byte string, text is their concatenation."""

from srt.tokenizer.detokenizer import Detokenizer
from srt.tokenizer.errors import TokenizerError
from srt.tokenizer.tokenizer import LONG, Tokenizer

__all__ = ["LONG", "Detokenizer", "Tokenizer", "TokenizerError"]
