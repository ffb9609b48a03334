"""Embeddings equal the pooled hidden states of transformers, whole, chunked and from the cache."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest
import torch
from helpers.hf_models import make, save
from helpers.paged import Paged, Sequence
from sglang.srt.config import Config
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Done, Embed, Open
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import local_executor
from sglang.srt.worker.runner import STATES_NOT_FINITE
from torch import Tensor

VOCAB = 97
MODELS = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]


@torch.no_grad()
def wanted(model, prompt: list[int], pooling: str) -> Tensor:
    states = model.model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
    return states.mean(0) if pooling == "mean" else states[-1]


def embed(engine: EngineCore, prompts: list[list[int]], pooling: str) -> dict[int, Done]:
    """All of them at once, by index."""
    for i, prompt in enumerate(prompts, 1 + len(engine.store.contexts)):
        engine.handle([Open(i, ints(prompt).tobytes()), Advance(i, i, Embed(pooling), close=True)])
    done: dict[int, Done] = {}
    while engine.busy:
        for event in engine.step():
            assert isinstance(event, Done), event
            done[event.request - 1] = event
    return done


def vector(done: Done) -> Tensor:
    values = array("f")
    values.frombytes(done.embedding)
    return torch.tensor(values)


@pytest.mark.parametrize("architecture", MODELS)
def test_the_pooled_states_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    model = make(architecture, seed=4)
    path = save(model, tmp_path)
    r = random.Random(architecture)
    stem = [r.randrange(VOCAB) for _ in range(20)]
    prompts = [stem[:k] + [r.randrange(VOCAB) for _ in range(n)]
               for k, n in ((0, 1), (20, 0), (20, 13), (17, 5), (20, 13), (0, 40))]  # fmt: skip
    spread = torch.stack([wanted(model, prompt, "last") for prompt in prompts]).std(0).mean()
    assert spread > 0.1, "states too alike to tell a right one from a wrong one"
    for pooling in ("last", "mean"):
        for page_size, chunk in ((1, -1), (1, 7), (4, 5)):
            config = Config.of(
                model_path=path, dtype="float32", device="cpu", max_total_tokens=512,
                page_size=page_size, chunked_prefill_size=chunk,
            )  # fmt: skip
            executor, info = local_executor(config)
            engine = EngineCore(executor, info, config.schedule, [b"x"] * VOCAB)
            for again in (False, True):  # the second time from the cache
                done = embed(engine, prompts, pooling)
                assert sorted(done) == list(range(len(prompts)))
                for i, prompt in enumerate(prompts):
                    error = (vector(done[i]) - wanted(model, prompt, pooling)).abs().max()
                    assert error < 1e-4, (pooling, page_size, chunk, i)
                cached = sum(d.stats.cached_tokens for d in done.values())
                assert cached == 0 if pooling == "mean" else cached or not again
            engine.store.check()


def test_states_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    model = make("LlamaForCausalLM")
    with torch.no_grad():
        model.model.embed_tokens.weight[5] = float("nan")
    paged = Paged(save(model, tmp_path), 1, 0)
    good, bad = paged.run([
        paged.row(Sequence([1, 2, 3]), 3, pool=0), paged.row(Sequence([1, 5, 3]), 3, pool=2),
    ]).rows  # fmt: skip
    assert not good.error
    assert len(good.pooled) == 32
    assert bad.error == STATES_NOT_FINITE
