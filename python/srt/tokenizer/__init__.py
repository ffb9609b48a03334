"""Tokenizer: converts text to token ids and back. Every token is a byte string."""

from sglang.srt.tokenizer.detokenizer import Detokenizer
from sglang.srt.tokenizer.tokenizer import LONG, Tokenizer
from sglang.srt.tokenizer.tokenizer_files import TokenizerError

__all__ = ["LONG", "Detokenizer", "Tokenizer", "TokenizerError"]
