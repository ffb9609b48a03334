"""Our logits equal those of transformers in float32, whatever the way through the paged cache."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import hf_models
from helpers.hf_models import make, save
from helpers.paged import Paged, Sequence

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn-mscale": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 4.0,
        "original_max_position_embeddings": 32, "mscale": 1.3, "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "llama3": {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    },
}  # fmt: skip

CASES: list[tuple[str, str, bool, dict[str, Any]]] = [
    ("LlamaForCausalLM", "default", False, {}),
    ("LlamaForCausalLM", "default", True, {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    ("LlamaForCausalLM", "linear", True, {"attention_bias": True, "mlp_bias": True}),
    ("LlamaForCausalLM", "dynamic", False, {"max_position_embeddings": 16}),
    ("LlamaForCausalLM", "yarn", False, {"head_dim": 16, "hidden_act": "gelu"}),
    ("LlamaForCausalLM", "yarn-mscale", True, {"num_key_value_heads": 1}),
    ("LlamaForCausalLM", "llama3", True, {"tie_word_embeddings": True}),
    ("MistralForCausalLM", "default", True, {"sliding_window": None}),
    ("MistralForCausalLM", "default", False, {"sliding_window": 7}),
    ("MistralForCausalLM", "llama3", False, {"sliding_window": 1, "num_key_value_heads": 4}),
    ("Qwen2ForCausalLM", "default", True, {"tie_word_embeddings": True}),
    ("Qwen2ForCausalLM", "yarn", False, {
        "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    ("Qwen2ForCausalLM", "dynamic", True, {"max_position_embeddings": 12}),
    ("Qwen3ForCausalLM", "default", False, {"tie_word_embeddings": True, "head_dim": 16}),
    ("Qwen3ForCausalLM", "linear", False, {
        "num_key_value_heads": 4, "attention_bias": True, "use_sliding_window": True,
        "sliding_window": 9, "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    ("Qwen3ForCausalLM", "yarn", True, {"num_key_value_heads": 1}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_logits(number: int, tmp_path: Path) -> None:
    architecture, rope, old_style, settings = CASES[number]
    model = make(architecture, seed=number, rope_parameters=ROPES[rope], **settings)
    path = save(model, tmp_path, old_style)
    r = random.Random(number)
    # A whole prompt past max_position_embeddings gets another base in transformers: see rotary.py.
    cached = rope == "dynamic"
    texts = [[r.randrange(97) for _ in range(n)] for n in (40, 1, 13, 26)]
    wanted = [hf_models.logits(model, text, cached) for text in texts]
    assert wanted[0].std() > 0.5, "logits too flat to tell a right model from a wrong one"
    for page_size in (1, 4):
        for way in (whole, chunked, token_by_token):
            paged = Paged(path, page_size, number)
            sequences = [Sequence(text) for text in texts]
            way(paged, sequences, r)
            for sequence, want in zip(sequences, wanted):
                assert (sequence.result - want).abs().max() < 1e-4


def whole(paged: Paged, sequences: list[Sequence], r: random.Random) -> None:
    """Each prompt in one piece, alone."""
    for sequence in sequences:
        paged.advance([(sequence, len(sequence.tokens))])


def chunked(paged: Paged, sequences: list[Sequence], r: random.Random) -> None:
    """Random pieces of random sequences in each batch."""
    while left := [s for s in sequences if s.done < len(s.tokens)]:
        r.shuffle(left)
        chosen = left[: r.randint(1, len(left))]
        paged.advance([(s, r.randint(1, min(12, len(s.tokens) - s.done))) for s in chosen])


def token_by_token(paged: Paged, sequences: list[Sequence], r: random.Random) -> None:
    """One token of every sequence in each batch."""
    while left := [s for s in sequences if s.done < len(s.tokens)]:
        paged.advance([(s, 1) for s in left])


@pytest.mark.parametrize("page_size", [1, 4])
def test_rows_read_pages_that_their_batch_writes(page_size: int, tmp_path: Path) -> None:
    """Three rows share a prefix that the first of them computes in the same pass."""
    settings = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    model = make("Qwen2ForCausalLM", **settings)
    paged = Paged(save(model, tmp_path), page_size, 1)
    r = random.Random(5)
    prefix = [r.randrange(97) for _ in range(16)]
    texts = [prefix + [r.randrange(97) for _ in range(n)] for n in (6, 9, 1)]
    first = Sequence(texts[0])
    rows = [paged.row(first, len(texts[0]))]
    for text in texts[1:]:
        sharing = Sequence(text, first.pages[: 16 // page_size], done=16)
        rows.append(paged.row(sharing, len(text) - 16))
    # The reader may come before the writer: all rows are stored before any attends.
    got = paged.logits([rows[1], rows[0], rows[2]])
    want = [hf_models.logits(model, text) for text in texts]
    for out, reference in zip(got, [want[1][16:], want[0], want[2][16:]]):
        assert (out - reference).abs().max() < 1e-4


@pytest.mark.parametrize("architecture", list(hf_models.CONFIGS))
def test_greedy_text(architecture: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_position_embeddings": 128}
    if architecture == "MistralForCausalLM":
        settings["sliding_window"] = 11
    model = make(architecture, seed=3, **settings)
    paged = Paged(save(model, tmp_path, max_shard_size="8KB"), 4, 3)
    r = random.Random(9)
    prompts = [[r.randrange(97) for _ in range(n)] for n in (3, 17, 30)]
    got = paged.greedy(prompts, 64)
    for prompt, tokens in zip(prompts, got):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False
        )
        assert tokens == out[0, len(prompt) :].tolist()
    assert len({tuple(tokens) for tokens in got}) == 3
    assert len(set(got[0])) > 3, "a text that repeats one token tells little"
