"""``get_tokenizer`` under the module name of earlier releases."""

from sglang.srt.utils.hf_transformers_utils import get_tokenizer

__all__ = ["get_tokenizer"]
