"""Reference: the embedded model by transformers, whole sequences at a time, fp32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from helpers.inferlet_runs import embedded_model
from sglang.srt.tokenizer.tokenizer import Tokenizer


class Reference:
    """The embedded model by transformers."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.load()
        self.model = embedded_model()

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, True))

    @torch.no_grad()
    def logits(
        self, tokens: list[int], sees: Callable[[int, int], bool] | None = None,
        positions: list[int] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Logits of all tokens; token ``i`` sees ``j <= i`` where ``sees(i, j)``."""
        count = len(tokens)
        seen = torch.tensor(
            [[j == i or (j < i and (sees is None or sees(i, j))) for j in range(count)]
             for i in range(count)]
        )  # fmt: skip
        bias = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        places = torch.tensor([positions or list(range(count))])
        ids = torch.tensor([tokens])
        return self.model(ids, attention_mask=bias[None, None], position_ids=places).logits[0]

    def greedy(self, tokens: list[int], count: int, **seen: Any) -> list[int]:
        """New tokens, the whole sequence computed for each."""
        found = list(tokens)
        for _ in range(count):
            token = int(self.logits(found, **seen)[-1].argmax())
            if token in (2, 0):
                break
            found.append(token)
        return found[len(tokens) :]

    def text(self, prompt: str, count: int, **seen: Any) -> str:
        return self.tokenizer.decode(self.greedy(self.encode(prompt), count, **seen))

    def completed(self, parts: Sequence[str], count: int, stop: str = "") -> str:
        """Greedy text behind parts that are tokenized one by one, up to ``stop`` and with it."""
        tokens = [
            token
            for index, part in enumerate(parts)
            for token in self.tokenizer.encode(part, index == 0)
        ]
        found: list[int] = []
        while len(found) < count and not (stop and stop in self.tokenizer.decode(found)):
            new = self.greedy(tokens + found, 1)
            if not new:
                break
            found += new
        return self.tokenizer.decode(found)
