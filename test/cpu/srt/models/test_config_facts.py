"""Facts that configs state: unknown architectures, rotary embeddings of a part of each head or of
long texts, layers without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sgl_kernel.packed
import torch
from helpers.hf_models import CONFIGS
from sglang.srt.layers.activations import ACTIVATIONS, TEXT
from sglang.srt.layers.rotary import Rope, Rotary, from_pairs
from sglang.srt.models import registry
from sglang.srt.models.config_fields import Fields, read_json
from sglang.srt.models.gemma3 import Gemma3ForConditionalGeneration
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.models.registry import TELLING

LLAMA: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
# Settings that two config classes of CONFIGS need; the others need none.
NEEDED: dict[str, dict[str, Any]] = {
    "GPTNeoXForCausalLM": {"num_key_value_heads": 0, "head_dim": 0},
    "GPT2LMHeadModel": {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "head_dim": 0,
        "max_position_embeddings": 1024, "intermediate_size": 0, "num_key_value_heads": 0,
    },
}  # fmt: skip
SLIDING = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
GEMMA3 = "Gemma3ForConditionalGeneration"
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
        [torch.from_numpy(x) for x in Rotary(spec.rope, 16, length, None, None).angles()]
        for length in (64, 65)
    )
    plain = [torch.from_numpy(x) for x in Rotary(Rope(), 16, 65, None, None).angles()]
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
    rows = np.arange(12.0).reshape(12, 1)  # two heads of six dimensions, of which four turn
    assert from_pairs(rows, 6, 4).flatten().tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


def whole(architecture: str) -> dict[str, Any]:
    """A config.json in which transformers wrote every key, with the family's own values."""
    values: dict[str, Any] = CONFIGS[architecture](**NEEDED.get(architecture, {})).to_dict()
    # Stop tokens and the stored dtype are properties of each checkpoint, not of the family.
    return {**values, "eos_token_id": None, "dtype": None}


def spec_of(architecture: str, values: dict[str, Any]) -> ModelSpec | None:
    """None where a key that must be there is missing."""
    try:
        return registry.MODELS[architecture].read(Fields(values, "config.json"), architecture)
    except ValueError as error:
        if "is missing" not in str(error):
            raise
        return None


@pytest.mark.parametrize("architecture", sorted(CONFIGS.keys() - {GEMMA3}))
def test_a_missing_key_has_the_default_of_its_family(architecture: str) -> None:
    values = whole(architecture)
    kept = {"model_type"}  # by which it is of the family
    if architecture in SLIDING:
        values |= {"use_sliding_window": True, "sliding_window": 4096}
        values.pop("layer_types", None)
        kept.add("use_sliding_window")
    spec = spec_of(architecture, values)
    assert spec is not None
    for key in values.keys() - kept:
        got = spec_of(architecture, {k: v for k, v in values.items() if k != key})
        assert got in (spec, None), key
    rope = values.get("rope_parameters")
    if rope is not None:  # some by kind of layer
        bare = {k: {"rope_type": "default"} if isinstance(v, dict) else v for k, v in rope.items()}
        bare.pop("rope_theta", None)
        assert spec_of(architecture, {**values, "rope_parameters": bare}) == spec


def test_what_a_text_config_leaves_out() -> None:
    values = whole("Gemma3ForCausalLM")
    spec = spec_of(GEMMA3, {"text_config": values})
    for key in values:
        text = {k: v for k, v in values.items() if k != key}
        assert spec_of(GEMMA3, {"text_config": text}) in (spec, None), key


def test_null_is_not_a_missing_key() -> None:
    capped: Any = read("Gemma2ForCausalLM")
    assert (capped.score_cap, capped.logit_cap) == (50, 30)
    free: Any = read("Gemma2ForCausalLM", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (free.score_cap, free.logit_cap) == (0, 0)
    sparse = {"num_experts": 8, "use_sliding_window": True}
    assert read("Qwen3MoeForCausalLM", **sparse).windows == (4096,) * 4
    assert read("Qwen3MoeForCausalLM", **sparse, sliding_window=None).windows == (0,) * 4
    long = {"rope_scaling": {**FACTORS}, "max_position_embeddings": 8192}
    assert read("Phi3ForCausalLM", **long).rope.original_length == 4096


def test_gemma3_stops_at_what_generation_config_says() -> None:
    text = {**LLAMA, "eos_token_id": 1}
    for outer, eos in (([1, 96], (1, 96)), (None, (1,))):
        config = Fields({"text_config": text, "eos_token_id": outer}, "config.json")
        assert Gemma3ForConditionalGeneration.read(config, "Gemma3").eos == eos


@pytest.mark.parametrize(
    ("prefix", "outer", "head"),
    [("language_model.model.", "", "language_model.lm_head.weight"),
     ("model.language_model.", "model.", "lm_head.weight")],
)  # fmt: skip
def test_gemma3_of_old_and_new_releases(prefix: str, outer: str, head: str) -> None:
    towers = [f"{outer}vision_tower.x", f"{outer}multi_modal_projector.y"]
    ours = {"model.layers.0.mlp.up_proj.weight": f"{prefix}layers.0.mlp.up_proj.weight"}
    ours["lm_head.weight"] = head
    names = Gemma3ForConditionalGeneration.names([*ours.values(), *towers])
    assert names == {**ours, **{name: name for name in towers}}
    assert all(name.startswith(Gemma3ForConditionalGeneration.UNREAD) for name in towers)


def test_activations_of_text_models() -> None:
    assert set(TEXT) <= sgl_kernel.packed.ACTIVATIONS.keys(), "what is recorded is native"
    assert ACTIVATIONS["gelu_fast"] is ACTIVATIONS["gelu_new"]
    assert read("GPTNeoXForCausalLM", hidden_act="gelu_fast").activation == "gelu_fast"
    for architecture, key in (("LlamaForCausalLM", "hidden_act"),
                              ("Gemma2ForCausalLM", "hidden_activation")):  # fmt: skip
        with pytest.raises(ValueError, match="quick_gelu'; supported are silu, "):
            read(architecture, **{key: "quick_gelu"})


@pytest.mark.parametrize("stem", ["GPT2", "Gemma3Text", "Llama", "GPTNeoX"])
def test_models_that_write_nothing_have_all_names(stem: str) -> None:
    assert read(f"{stem}Model").purpose == "embed"
    assert read(f"{stem}ForSequenceClassification").purpose == "classify"


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan")])
def test_a_number_that_no_float_holds_is_named(value: Any) -> None:
    with pytest.raises(ValueError, match=r"config\.json: lora_alpha is .* finite number"):
        Fields({"lora_alpha": value}, "config.json").float("lora_alpha")


def test_a_file_with_a_number_of_many_digits_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"r": {"9" * 5000}}}')
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON: Exceeds the limit"):
        read_json(path)
