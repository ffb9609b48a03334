"""Logits equal those of transformers in float32, however the paged cache is used."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from helpers import hf_models
from helpers.hf_models import make, save
from helpers.paged import Paged
from helpers.parity import hold_shared_prefix


@pytest.mark.parametrize("page_size", [1, 4])
def test_rows_read_pages_that_their_batch_writes(page_size: int, tmp_path: Path) -> None:
    settings = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    model = make("Qwen2ForCausalLM", **settings)
    paged = Paged(save(model, tmp_path), page_size, 1)
    hold_shared_prefix(paged, model, page_size)


def test_long_greedy_texts_of_a_sharded_checkpoint(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_position_embeddings": 128, "sliding_window": 11}
    model = make("MistralForCausalLM", seed=3, **settings)
    paged = Paged(save(model, tmp_path, max_shard_size="8KB"), 4, 3)
    r = random.Random(9)
    prompts = [[r.randrange(97) for _ in range(n)] for n in (3, 17, 30)]
    got = paged.greedy(prompts, 64)
    assert got == [hf_models.greedy(model, prompt, 64) for prompt in prompts]
    assert len({tuple(tokens) for tokens in got}) == 3
    assert len(set(got[0])) > 3, "a text that repeats one token tells little"
