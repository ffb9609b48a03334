"""A real model computed in a thread of its own: the same texts, scores and embeddings."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Done,
    Embed,
    Generate,
    Goal,
    Open,
    PromptChunk,
    Score,
    Tokens,
)
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Executor, Inline, Threaded, load_worker

from benchmark.models import EMBEDDED
from benchmark.step_cost.measure import Cost, decode_cost

CONFIG = Config.of(
    model_path=str(EMBEDDED), max_total_tokens=400, max_running_requests=4, dtype="float32",
    chunked_prefill_size=16, threads=1,
)  # fmt: skip


def some_goal(r: random.Random, length: int) -> Goal:
    if r.random() < 0.2:
        others: list[Goal] = [Score(r.randrange(length)), Embed("mean"), Embed("last")]
        return r.choice(others)
    sampling = SamplingParams(
        max_new_tokens=r.randint(1, 20), temperature=r.choice([0.0, 1.0]), seed=r.randrange(99),
        frequency_penalty=r.choice([0.0, 0.5]), repetition_penalty=r.choice([1.0, 1.3]),
        ignore_eos=r.random() < 0.5,
    )  # fmt: skip
    return Generate(sampling, top=r.choice([-1, 2]))


def answers(executor: Executor, info: Any) -> tuple[dict[int, list[Any]], EngineCore]:
    """Tokens, log-probabilities, scores and embeddings of 24 requests."""
    r = random.Random(3)
    engine = EngineCore(executor, info, CONFIG.schedule, [b"x"] * info.vocab_size)
    found: dict[int, list[Any]] = {}
    for number in range(24):
        tokens = ints(r.randrange(300, 800) for _ in range(r.randint(2, 40)))
        goal = some_goal(r, len(tokens))
        engine.handle([Open(number, tokens.tobytes()), Advance(number, number, goal, close=True)])
        found[number] = []
    while engine.busy:
        for event in engine.step():
            out = found[event.request]  # type: ignore[union-attr]
            if isinstance(event, Tokens):
                out += [*event.tokens, *event.logprobs]
            elif isinstance(event, PromptChunk):
                out += event.logprobs
            else:
                assert isinstance(event, Done), event
                out += [event.reason, *memoryview(event.embedding).cast("f")]
    engine.store.check()
    return found, engine


def test_a_thread_changes_nothing() -> None:
    worker, info = load_worker(CONFIG)
    alone, _ = answers(Inline(worker), info)
    executor = Threaded(worker)
    found, engine = answers(executor, info)
    executor.close()
    for number, values in alone.items():
        assert found[number] == pytest.approx(values, abs=1e-4), number
    assert engine.stats.failed_passes == 0
    assert executor.busy > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
def test_the_cost_of_a_step_is_that_of_right_texts(overlap: bool, page_size: int) -> None:
    cost = decode_cost(3, 21, page_size, overlap, steps=3, rounds=1)
    assert all(getattr(cost, part) > 0 for part in Cost.__annotations__)
