"""Static: the peer that everyone has, ``transformers`` ``generate`` on left-padded batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from sglang.srt.commands.bench.result import BenchCall, Result
from sglang.srt.commands.bench.target import Target

_TORCH_DTYPES = ("float32", "bfloat16", "float16")


class Static(Target):
    """Batches of requests of like length, each as long as its longest output.

    A request's first token comes when its batch's first pass is done; the others have no times of
    their own, so there is no ITL. A batch samples as many tokens as its longest output wants. The
    surplus of the others is thrown away: it is no output.

    Args:
        batch_size: requests a batch.
        dtype: "auto" for the checkpoint's.

    Raises ValueError for an unknown ``dtype``.
    """

    batched = True

    def __init__(self, model_path: str, *, batch_size: int = 64, dtype: str = "auto") -> None:
        if dtype not in ("auto", *_TORCH_DTYPES):
            raise ValueError(f"--dtype is {dtype!r}; use auto or one of {_TORCH_DTYPES}")
        self.name = "transformers"
        self._path, self._batch, self._dtype = model_path, batch_size, dtype
        self._model: Any = None
        self._tokenizer: Any = None

    async def start(self) -> None:
        """Load the model. Raises the errors of loading it."""
        await asyncio.to_thread(self._load)

    def _load(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = AutoModelForCausalLM.from_pretrained(self._path, dtype=self._dtype)
        self._model = model.to(device).eval()
        # Greedy, without an end token: the requested number of tokens.
        config = self._model.generation_config
        config.do_sample, config.eos_token_id, config.pad_token_id = False, None, 0
        config.temperature = config.top_p = config.top_k = None
        self._tokenizer = AutoTokenizer.from_pretrained(self._path)

    def answer_all(self, calls: Sequence[BenchCall], results: Sequence[Result]) -> None:
        order = sorted(range(len(calls)), key=lambda i: (len(calls[i].tokens), calls[i].output))
        for at in range(0, len(order), self._batch):
            chosen = order[at : at + self._batch]
            self._answer_batch([calls[i] for i in chosen], [results[i] for i in chosen])

    def _answer_batch(self, calls: list[BenchCall], results: list[Result]) -> None:
        import torch

        prompts = [call.tokens for call in calls]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        passes: list[float] = []

        def timed(*_: Any) -> torch.Tensor:
            """A stopping criterion that stops nothing: it is called after every pass."""
            passes.append(perf_counter())
            return torch.zeros(len(calls), dtype=torch.bool, device=self._model.device)

        with torch.inference_mode():
            drawn = self._model.generate(
                input_ids=ids.to(self._model.device),
                attention_mask=mask.to(self._model.device),
                max_new_tokens=max(call.output for call in calls),
                stopping_criteria=[timed],
            )[:, width:].tolist()
        end = perf_counter()
        for call, result, row in zip(calls, results, drawn, strict=True):
            result.ids = tuple(row[: call.output])
            result.text = self._tokenizer.decode(result.ids, skip_special_tokens=True)
            result.prompt_tokens, result.output_tokens = len(call.tokens), len(result.ids)
            result.finish = "length"
            result.first, result.last, result.end = passes[0], passes[call.output - 1], end

    async def close(self) -> None:
        self._model = None
