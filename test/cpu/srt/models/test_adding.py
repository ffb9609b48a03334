"""docs/adding-a-model.md, followed to the letter: its code is a model that computes what plain
torch computes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.parity import NEW_TOKENS, Case, check_saved
from helpers.paths import ROOT
from helpers.ranks import split_logits
from safetensors.torch import save_file
from sglang.srt.layers.tape_writer import missing_word
from sglang.srt.layers.weight import OutlinePlace
from sglang.srt.models import registry
from sglang.srt.models.config_fields import Fields
from sglang.srt.numeric.host_arrays import FLOAT32, HOST
from torch import Tensor

PAGE = ROOT / "docs" / "adding-a-model.md"
# The inner width is that of all heads: what is attended must outlive the other branch.
VOCAB, WIDTH, INNER, LAYERS, HEADS, KV, DIM, BASE = 96, 32, 32, 2, 4, 2, 8, 5000.0
CONFIG = {
    "architectures": ["NimbusForCausalLM"], "model_type": "nimbus", "vocab_size": VOCAB,
    "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM,
    "max_position_embeddings": 64, "rope_theta": BASE, "rms_norm_eps": 1e-5,
}  # fmt: skip
Weights = dict[str, Tensor]


@pytest.fixture
def followed() -> Iterator[dict[str, Any]]:
    """The names that the page's code defines."""
    found: dict[str, Any] = {"__name__": "nimbus"}
    for block in blocks():
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), found)
    yield found
    del registry.MODELS["NimbusForCausalLM"]


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


def weights() -> Weights:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int, mean: float = 0.0) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3 + mean

    out = {"embed.weight": draw(VOCAB, WIDTH), "lm_head.weight": draw(VOCAB, WIDTH)}
    out["final_norm.weight"] = draw(WIDTH, mean=1.0)
    for n in range(LAYERS):
        heads = {"q_proj": HEADS, "k_proj": KV, "v_proj": KV}
        sizes = {f"attn.{name}": (count * DIM, WIDTH) for name, count in heads.items()}
        sizes |= {"attn.o_proj": (WIDTH, HEADS * DIM), "mlp.gate_proj": (INNER, WIDTH)}
        sizes |= {"mlp.up_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER)}
        for name, shape in sizes.items():
            out[f"blocks.{n}.{name}.weight"] = draw(*shape)
        out[f"blocks.{n}.norm.weight"] = draw(WIDTH, mean=1.0)
    return out


def normed(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain


def turned(x: Tensor) -> Tensor:
    """x [heads, T, DIM], by complex numbers."""
    rates = BASE ** (-torch.arange(0, DIM, 2) / DIM)
    angles = torch.outer(torch.arange(x.shape[1]), rates)
    pairs = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], -1)


def reference(w: Weights, tokens: list[int]) -> Tensor:
    """Logits [T, VOCAB], written down from the page's first paragraphs."""
    x = w["embed.weight"][tokens] * WIDTH**0.5
    unseen = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)
    for n in range(LAYERS):
        p = {k.removeprefix(f"blocks.{n}."): v for k, v in w.items() if f"blocks.{n}." in k}
        y = normed(x, p["norm.weight"])
        q, k, v = (
            (y @ p[f"attn.{name}.weight"].T).unflatten(-1, (-1, DIM)).transpose(0, 1)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        k, v = (z.repeat_interleave(HEADS // KV, 0) for z in (turned(k), v))
        scores = turned(q) @ k.transpose(1, 2) / DIM**0.5 + unseen
        seen = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        gate = F.silu(y @ p["mlp.gate_proj.weight"].T) * (y @ p["mlp.up_proj.weight"].T)
        x = x + seen @ p["attn.o_proj.weight"].T + gate @ p["mlp.down_proj.weight"].T
    return normed(x, w["final_norm.weight"]) @ w["lm_head.weight"].T


def test_the_page(followed: dict[str, Any], tmp_path: Path) -> None:
    code = [line for block in blocks() for line in block.splitlines()]
    assert len(code) < 80
    w = weights()
    save_file(w, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def greedy(prompt: list[int]) -> list[int]:
        tokens = list(prompt)
        for _ in range(NEW_TOKENS):
            tokens.append(int(reference(w, tokens)[-1].argmax()))
        return tokens[len(prompt) :]

    case = Case("NimbusForCausalLM")
    check_saved(str(tmp_path), case, VOCAB, lambda text: reference(w, text), greedy)
    text = list(range(20))
    for got in split_logits(str(tmp_path), text, 2):
        assert (got - reference(w, text)).abs().max() < 1e-4
    family = followed["NimbusForCausalLM"]
    spec = family.read(Fields(CONFIG, "config.json"), "NimbusForCausalLM")
    assert not missing_word(family(spec, OutlinePlace(HOST, FLOAT32), 1))


def test_a_name_is_one_familys() -> None:
    with pytest.raises(ValueError, match="'LlamaForCausalLM' is LlamaForCausalLM's"):
        registry.register("LlamaForCausalLM", registry.MODELS["Qwen2ForCausalLM"])
