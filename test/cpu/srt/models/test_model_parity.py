"""Logits equal those of transformers in float32, however the paged cache is used."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers
from helpers import hf_models
from helpers.hf_models import make, save
from helpers.paged import Paged
from helpers.parity import hold_shared_prefix
from sglang.srt.config import Config
from sglang.srt.worker.model_loading import plan_of


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


@pytest.mark.parametrize("equal", [False, True])
def test_a_head_that_is_not_the_embedding_is_used(equal: bool, tmp_path: Path) -> None:
    """The checkpoint counts, not tie_word_embeddings; an equal head is not kept twice."""
    model = make("LlamaForCausalLM", seed=2)
    if equal:
        model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)
    path = save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["tie_word_embeddings"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    reference = transformers.LlamaForCausalLM.from_pretrained(path).eval()
    paged = Paged(path, 1, 0)
    assert paged.greedy([[1, 2, 3]], 24) == [hf_models.greedy(reference, [1, 2, 3], 24)]
    assert plan_of(Config.of(model_path=path, device="cpu")).spec.tied == equal
