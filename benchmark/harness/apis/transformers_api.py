"""TransformersApi: ``transformers`` in this process, static left-padded batches of the calls that
are made at once. It keeps no KV from one call to the next and knows no constraints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from benchmark.harness.apis.batches import Batches
from benchmark.harness.claim import Message

ROWS = 64  # in a batch at most
CELLS = 32_768  # tokens in a batch at most, padding included
PADDED = 1.2  # cells for each token, at most


@dataclass(frozen=True)
class _Text:
    """A text to be written."""

    ids: list[int]
    count: int
    stop: tuple[str, ...]


@dataclass(frozen=True)
class _Score:
    """An option whose tokens are to be scored: the last ``count`` of ``ids``."""

    ids: list[int]
    count: int
    stop: tuple[str, ...] = ()


class TransformersApi:
    """``dtype``: "auto" for the checkpoint's. ``ignore_eos``: end tokens are sampled like
    others."""

    def __init__(self, model_path: str, *, dtype: str = "auto", ignore_eos: bool = False) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype)
        self._model.eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_path)
        config = self._model.generation_config
        ends = config.eos_token_id
        self._ends = {ends} if isinstance(ends, int) else set(ends or ())
        config.do_sample, config.pad_token_id = False, 0
        config.temperature = config.top_p = config.top_k = None
        if ignore_eos:
            config.eos_token_id, self._ends = None, set()
        self._texts: Batches[_Text, str] = Batches(self._written)
        self._scores: Batches[_Score, float] = Batches(self._scored)
        self.versions = {name: version(name) for name in ("transformers", "torch")}
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0

    async def complete(
        self, prompt: str, max_tokens: int, *, stop: Sequence[str] = (), regex: str = "",
        json_schema: Mapping[str, Any] | None = None, n: int = 1,
    ) -> list[str]:  # fmt: skip
        if regex or json_schema is not None:
            raise NotImplementedError("transformers holds no text to a pattern")
        call = _Text(self._ids(prompt), max_tokens, tuple(stop))
        return list(await asyncio.gather(*(self._texts.ask(call) for _ in range(n))))

    async def chat(
        self, messages: Sequence[Message], max_tokens: int, *, stop: Sequence[str] = ()
    ) -> str:
        if any(not isinstance(message["content"], str) for message in messages):
            raise NotImplementedError("this side of transformers reads text alone")
        prompt = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        [text] = await self.complete(prompt, max_tokens, stop=stop)
        return text

    async def choose(self, prompt: str, options: Sequence[str]) -> int:
        begun = self._ids(prompt)
        calls = []
        for option in options:
            ids = self._ids(prompt + option)
            # Where the option changes how the prompt's end is cut, what is new is scored.
            same = next((i for i, (a, b) in enumerate(zip(begun, ids)) if a != b), len(begun))
            calls.append(_Score(ids, max(1, len(ids) - same)))
        scores = await asyncio.gather(*(self._scores.ask(call) for call in calls))
        return max(range(len(options)), key=scores.__getitem__)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _written(self, calls: Sequence[_Text]) -> list[str]:
        found = [""] * len(calls)
        for rows in _batches(calls):
            chosen = [calls[i] for i in rows]
            ids, mask = self._padded(chosen)
            stop, most = chosen[0].stop, max(call.count for call in chosen)
            extra = {"stop_strings": list(stop), "tokenizer": self._tokenizer} if stop else {}
            with self._torch.inference_mode():
                drawn = self._model.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=most, **extra
                )[:, ids.shape[1] :].tolist()
            for i, call, row in zip(rows, chosen, drawn):
                found[i] = self._text(call, row)
        return found

    def _text(self, call: _Text, drawn: list[int]) -> str:
        """The text that a server would answer: up to an end token, a stop text or the count."""
        end = next((i for i, token in enumerate(drawn) if token in self._ends), len(drawn))
        kept = drawn[: min(end, call.count)]
        self.prompt_tokens += len(call.ids)
        self.completion_tokens += len(kept)
        text: str = self._tokenizer.decode(kept, skip_special_tokens=True)
        places = [at for stop in call.stop if (at := text.find(stop)) >= 0]
        return text[: min(places, default=len(text))]

    def _scored(self, calls: Sequence[_Score]) -> list[float]:
        """Mean log-probability of each option's tokens."""
        found = [0.0] * len(calls)
        for rows in _batches(calls):
            chosen = [calls[i] for i in rows]
            ids, mask = self._padded(chosen)
            kept = max(call.count for call in chosen) + 1
            places = (mask.cumsum(1) - 1).clamp(min=0)
            with self._torch.inference_mode():
                logits = self._model(
                    input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False,
                    logits_to_keep=kept,
                ).logits  # fmt: skip
                known = logits[:, :-1].float().log_softmax(-1)
                of = known.gather(2, ids[:, -(kept - 1) :, None])[..., 0]
            for i, call, row in zip(rows, chosen, of):
                found[i] = float(row[-call.count :].mean())
                self.prompt_tokens += len(call.ids)
        return found

    def _padded(self, calls: Sequence[_Text | _Score]) -> tuple[Any, Any]:
        """Ids and mask, [rows, longest], padded on the left."""
        longest = max(len(call.ids) for call in calls)
        lacking = [longest - len(call.ids) for call in calls]
        ids = [[0] * n + call.ids for n, call in zip(lacking, calls)]
        mask = [[0] * n + [1] * len(call.ids) for n, call in zip(lacking, calls)]
        return self._torch.tensor(ids), self._torch.tensor(mask)


def _batches(calls: Sequence[_Text | _Score]) -> Iterator[list[int]]:
    """Numbers of calls that stop alike, want about as many tokens and are about as long."""

    def key(i: int) -> tuple[Any, ...]:
        call = calls[i]
        return call.stop, call.count.bit_length(), len(call.ids)

    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(calls)), key=key, reverse=True):
        rows, tokens = len(batch) + 1, tokens + len(calls[i].ids)
        if batch:
            cells = rows * len(calls[batch[0]].ids)
            alike = key(i)[:2] == key(batch[0])[:2]
            if not alike or rows > ROWS or cells > CELLS or cells > PADDED * tokens:
                yield batch
                batch, tokens = [], len(calls[i].ids)
        batch.append(i)
    if batch:
        yield batch
