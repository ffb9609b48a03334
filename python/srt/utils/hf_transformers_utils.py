"""``get_tokenizer``: the runtime's tokenizer with the calls that programs make of transformers'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["get_tokenizer"]


class _ListTokenizer:
    """A tokenizer that gives lists where the runtime's gives arrays; else the runtime's own."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = next(iter(tokenizer.eos_ids), None)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``."""
        return list(self._tokenizer.encode(text, add_special_tokens))

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens))

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str | list[int]:
        """The prompt of a conversation: its text, or its token ids where ``tokenize``."""
        text: str = self._tokenizer.apply_chat_template(
            conversation, add_generation_prompt, **variables
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def __len__(self) -> int:
        return int(self._tokenizer.vocab_size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def get_tokenizer(tokenizer_name: str, *_: Any, revision: str = "", **ignored: Any) -> Any:
    """The tokenizer of a directory, a GGUF file or a hub id; ``sglang-tiny`` is the embedded
    model's. Options of transformers are accepted for compatibility.

    Raises sglang.srt.tokenizer.TokenizerError.
    """
    from sglang.srt.tokenizer import Tokenizer

    return _ListTokenizer(Tokenizer.load(tokenizer_name, revision or ""))
