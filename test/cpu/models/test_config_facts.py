"""What configs may say: unknown architectures, rotary embeddings of a part of each head or of long
texts, layers without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from srt.layers.rotary import Rope, Rotary, from_pairs
from srt.models import registry
from srt.models.config import Fields, ModelSpec
from srt.models.kin import TELLING

LLAMA: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
FACTORS = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}


def read(architecture: str, **more: Any) -> ModelSpec:
    family = registry.lookup(architecture)
    return family.read(Fields({**LLAMA, **more}, "config.json"), architecture)


@pytest.mark.parametrize(
    ("name", "config", "says"),
    [
        ("LlamaForCasualLM", {}, "The nearest name is LlamaForCausalLM."),
        ("YuanForCausalLM", LLAMA, "most like that of LlamaForCausalLM"),
        ("YuanForCausalLM", {**LLAMA, "num_local_experts": 8}, "that of MixtralForCausalLM"),
        ("YuanForCausalLM", {"text_config": {"kv_lora_rank": 4}}, "that of DeepseekV2ForCausalLM"),
        ("MyChat", {**LLAMA, "model_type": "qwen3"}, "that of Qwen3ForCausalLM"),
        ("MyChat", {"model_type": ["?"], "text_config": 3}, "docs/adding-a-model.md tells"),
    ],
)
def test_unknown_architectures(name: str, config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not supported") as caught:
        registry.lookup(name, config)
    text = str(caught.value)
    assert says in text
    assert "Cohere, Cohere2, DeepseekV2," in text, "the list is sorted"
    assert len(text) < 1000


def test_kin_are_architectures() -> None:
    assert set(TELLING.values()) <= registry.MODELS.keys()


@pytest.mark.parametrize(
    ("architecture", "more", "says"),
    [
        ("LlamaForCausalLM", {"partial_rotary_factor": 0.5}, "0.5; only 1 is supported"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 1.5}, "above 0 and at most 1"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.2}, "turns 3 of a head's 16 dimensions"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.01}, "turns 0 of a head's 16"),
        ("Phi3ForCausalLM", {"rope_scaling": {**FACTORS, "long_factor": [1.0] * 7}},
         "long_factor of the rotary embedding has 7 numbers; 8 above 0"),
        ("Phi3ForCausalLM", {"rope_scaling": {**FACTORS, "short_factor": [0.0] * 8}},
         "short_factor of the rotary embedding has 8 numbers; 8 above 0"),
        ("Phi3ForCausalLM", {"rope_scaling": {**FACTORS, "long_factor": [1.0, "2"]}},
         "must be a number"),
        ("Phi3ForCausalLM", {"rope_scaling": {**FACTORS, "long_factor": 4.0}}, "list of numbers"),
        ("Phi3ForCausalLM",
         {"rope_scaling": FACTORS, "original_max_position_embeddings": 1}, "needs 2 at least"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}, "must list 4 of 0 and 1"),
        ("SmolLM3ForCausalLM", {"no_rope_layer_interval": 0}, "at least 1"),
        ("GraniteForCausalLM", {"residual_multiplier": 0.0}, "at least 1e-06"),
        ("Cohere2ForCausalLM", {"layer_types": ["sliding_attention"]}, "must list 4 of"),
    ],
)  # fmt: skip
def test_bad_configs(architecture: str, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(architecture, **more)


def test_longrope_goes_by_the_longest_text_that_is_served() -> None:
    spec = read("Phi3ForCausalLM", rope_scaling=FACTORS, original_max_position_embeddings=64)
    short, long = (
        Rotary(spec.rope, 16, length, torch.float32, torch.device("cpu")).angles()
        for length in (64, 65)
    )
    plain = Rotary(Rope(), 16, 65, torch.float32, torch.device("cpu")).angles()
    factor = (1 + torch.tensor(64.0).log() / torch.tensor(64.0).log()).sqrt()  # 4096 / 64
    assert torch.allclose(short[0], plain[0][:64] * factor)
    # Four times slower: position 4 p as position p was.
    assert torch.allclose(long[1][::4], plain[1][:17] * factor, atol=1e-5)


def test_layers_that_do_not_rotate() -> None:
    spec: Any = read("SmolLM3ForCausalLM")
    assert spec.rotates == (True, True, True, False)
    assert read("CohereForCausalLM").rope.theta == 500_000
    assert read("Cohere2ForCausalLM", sliding_window=9).windows == (9, 9, 9, 0)


def test_pairs_that_turn_together_become_halves() -> None:
    rows = torch.arange(12.0).view(12, 1)  # two heads of six dimensions, of which four turn
    assert from_pairs(rows, 6, 4).flatten().tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
