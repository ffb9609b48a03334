"""Measure: samples of the four curves, from an engine in this process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from sglang.srt.commands.bench.workload import WorkloadTokens

from benchmark.models import Shape
from benchmark.peers import roofline
from benchmark.peers.sides.wire import Request

CURVES = {
    "batch": "decode against requests at once (128 in)",
    "context": "decode against context (8 requests)",
    "prefill": "prefill against prompt length (8 requests)",
    "hits": "prompt tokens against the share found in the cache, % (32 requests, 512 in, 8 out)",
}
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096)
SHARES = (0, 25, 50, 75, 90, 100)
BATCH_CONTEXT, CONTEXT_BATCH = 128, 8
HIT_REQUESTS, HIT_PROMPT, HIT_DRAWN = 32, 512, 8


@dataclass(frozen=True)
class Sample:
    """``tokens`` of a curve at ``x`` came in ``seconds``. ``least`` is the roofline's, or None."""

    curve: str
    x: int
    tokens: int
    seconds: float
    least: float | None


@dataclass(frozen=True)
class Measure:
    """``most``, ``longest``: requests at once and tokens of context that curves end at; ``drawn``
    tokens a request. ``limits``: of the machine, None where they are not known."""

    engine: Any
    shape: Shape
    drawn: int
    most: int = BATCHES[-1]
    longest: int = CONTEXTS[-1]
    limits: roofline.Limits | None = None

    @property
    def room(self) -> int:
        """Tokens of KV that every curve fits in."""
        contexts = CONTEXT_BATCH * (self.longest + self.drawn)
        hits = HIT_REQUESTS * (HIT_PROMPT + HIT_DRAWN)
        return max(contexts, self.most * (BATCH_CONTEXT + self.drawn), hits) + 1024

    def samples(self, seed: int) -> Iterator[Sample]:
        """Every point once."""
        rng = random.Random(f"curves {seed}")
        for batch in (batch for batch in BATCHES if batch <= self.most):
            yield self._decoded("batch", batch, self._fresh(rng, batch, BATCH_CONTEXT)[1])
        for context in (context for context in CONTEXTS if context <= self.longest):
            prefill, prompts = self._fresh(rng, CONTEXT_BATCH, context)
            least = self._least(prompts, 1)
            yield Sample("prefill", context, CONTEXT_BATCH * context, prefill, least)
            yield self._decoded("context", context, prompts)
        for share in SHARES:
            yield self._hit(rng, share)

    def _fresh(self, rng: random.Random, count: int, length: int) -> tuple[float, list[list[int]]]:
        """Seconds of a prefill of ``count`` new prompts, and the prompts: they are cached now."""
        self.engine.flush_cache()
        tokens = WorkloadTokens(257, self.shape.vocab)
        prompts = [list(tokens.sample(rng, length)) for _ in range(count)]
        return self._seconds(prompts, 1), prompts

    def _decoded(self, curve: str, x: int, prompts: list[list[int]]) -> Sample:
        """Decode cached prompts: a pass computes each one's last token, further ones the sampled
        tokens."""
        seconds = self._seconds(prompts, self.drawn)
        least = self._least(prompts, self.drawn + 1, 1)
        return Sample(curve, x, len(prompts) * self.drawn, seconds, least)

    def _hit(self, rng: random.Random, share: int) -> Sample:
        self.engine.flush_cache()
        tokens = WorkloadTokens(257, self.shape.vocab)
        common = list(tokens.sample(rng, HIT_PROMPT * share // 100))
        if common:
            self._seconds([common], 1)
        own = max(1, HIT_PROMPT - len(common))
        kept = common[: HIT_PROMPT - own]
        prompts = [kept + list(tokens.sample(rng, own)) for _ in range(HIT_REQUESTS)]
        seconds = self._seconds(prompts, HIT_DRAWN)
        return Sample("hits", share, HIT_REQUESTS * HIT_PROMPT, seconds, None)

    def _seconds(self, prompts: list[list[int]], drawn: int) -> float:
        sampling = {"max_new_tokens": drawn, "temperature": 0, "ignore_eos": True}
        began = perf_counter()
        answers = self.engine.generate(input_ids=prompts, sampling_params=sampling)
        seconds = perf_counter() - began
        if any(len(answer["output_ids"]) != drawn for answer in answers):
            raise ValueError(f"an answer has not {drawn} tokens")
        return seconds

    def _least(self, prompts: list[list[int]], drawn: int, without: int = 0) -> float | None:
        """Least seconds to sample ``drawn`` tokens, less those to sample ``without`` tokens."""
        if self.limits is None:
            return None

        def least(count: int) -> float:
            requests: list[Request] = [(prompt, count) for prompt in prompts]
            assert self.limits is not None
            return roofline.seconds(self.shape, requests, self.limits, "bfloat16")

        return least(drawn) - (least(without) if without else 0.0)
