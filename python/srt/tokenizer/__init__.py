"""Text to token ids and back: every token is a byte string, text is their concatenation."""

from sglang.srt.tokenizer.detokenizer import Detokenizer
from sglang.srt.tokenizer.tokenizer import LONG, Tokenizer
from sglang.srt.tokenizer.tokenizer_files import TokenizerError

__all__ = ["LONG", "Detokenizer", "Tokenizer", "TokenizerError"]
