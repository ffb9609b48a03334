"""Models from GGUF files: the logits of the same weights in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import transformers
from helpers import hf_models
from helpers.gguf_files import Q, write_model
from helpers.paged import Paged, Sequence
from sglang.srt.files.gguf import KINDS
from sglang.srt.layers.quantised import Quantised
from sglang.srt.models.checkpoint_format import open_checkpoint
from sglang.srt.models.gguf.integers import INTEGERS
from sglang.srt.models.gguf.quants import FORMATS, dequantise
from sglang.srt.models.model_spec import read_config
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

TEXT = [5, 17, 3, 88, 41, 96, 0, 23, 64, 7, 30, 11]
ROPES: dict[str, dict[str, Any]] = {
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
             "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
               "rope_theta": 100.0},
}  # fmt: skip


def same(model: Any, path: Path, cached: bool = False, **options: Any) -> None:
    want = hf_models.logits(model, TEXT, cached)
    assert want.std() > 0.3
    paged = Paged(str(path), 4, 1, **options)
    sequence = Sequence(TEXT)
    paged.advance([(sequence, 7)])
    paged.advance([(sequence, len(TEXT) - 7)])
    assert (sequence.result - want).abs().max() < 1e-4


@pytest.mark.parametrize("kind", [k for k in KINDS.values() if k.name in FORMATS], ids=str)
def test_blocks_mean_what_their_authors_say(kind: Any) -> None:
    """Bit by bit, whatever the bytes."""
    number = next(n for n, k in KINDS.items() if k is kind)
    raw = np.random.default_rng(number).integers(0, 256, (64, 3 * kind.size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(raw, Q(number)).astype(np.float32)
    got = dequantise(raw, kind)
    assert np.array_equal(got, want, equal_nan=True)


def test_sizes_of_blocks_are_those_of_the_library() -> None:
    for number, kind in KINDS.items():
        assert (kind.block, kind.size) == gguf.GGML_QUANT_SIZES[Q(number)]
        assert kind.name == Q(number).name


def gemma2(w: gguf.GGUFWriter) -> None:
    w.add_sliding_window(5)
    w.add_attn_logit_softcapping(20.0)
    w.add_final_logit_softcapping(10.0)


def gemma3(w: gguf.GGUFWriter) -> None:
    w.add_sliding_window(5)
    w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    w.add_rope_scaling_factor(4.0)


def mixture(w: gguf.GGUFWriter) -> None:
    w.add_expert_count(4)
    w.add_expert_used_count(2)
    w.add_expert_feed_forward_length(24)


def granite(w: gguf.GGUFWriter) -> None:
    w.add_attention_scale(0.4)
    w.add_embedding_scale(3.0)
    w.add_residual_scale(0.5)
    w.add_logit_scale(2.0)


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
MODELS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "llama": ("LlamaForCausalLM", {"attention_bias": True}, lambda w: None),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}, lambda w: None),
    "qwen3": ("Qwen3ForCausalLM", {}, lambda w: None),
    "gemma2": ("Gemma2ForCausalLM", {
        "sliding_window": 5, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0,
        "query_pre_attn_scalar": 8}, gemma2),
    "gemma3": ("Gemma3ForCausalLM", {
        "sliding_window": 5, "query_pre_attn_scalar": 8, "num_hidden_layers": 6,
        "rope_parameters": GEMMA3_ROPE},
        lambda w: (gemma3(w), w.add_rope_freq_base(1000.0))),
    "phi3": ("Phi3ForCausalLM", {}, lambda w: None),
    "olmo2": ("Olmo2ForCausalLM", {}, lambda w: None),
    "starcoder2": ("Starcoder2ForCausalLM", {}, lambda w: None),
    "smollm3": ("SmolLM3ForCausalLM", {"num_hidden_layers": 4}, lambda w: None),
    "granite": ("GraniteForCausalLM", {
        "attention_multiplier": 0.4, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
        "logits_scaling": 2.0}, granite),
    "gpt2": ("GPT2LMHeadModel", {}, lambda w: None),
    "qwen3moe": ("Qwen3MoeForCausalLM", {**EXPERTS, "norm_topk_prob": True}, mixture),
    "qwen2moe": ("Qwen2MoeForCausalLM", {**EXPERTS, "shared_expert_intermediate_size": 20},
                 mixture),
}  # fmt: skip


@pytest.mark.parametrize("architecture", list(MODELS))
def test_architectures(architecture: str, tmp_path: Path) -> None:
    name, settings, facts = MODELS[architecture]
    model = hf_models.make(name, 1, **settings)
    same(model, write_model(tmp_path / "m.gguf", model, architecture, facts=facts))


def test_mixtral_is_a_llama_with_experts(tmp_path: Path) -> None:
    model = hf_models.make("MixtralForCausalLM", 1, num_local_experts=4, sliding_window=None)
    same(model, write_model(tmp_path / "m.gguf", model, "llama", facts=mixture))
    assert read_config(tmp_path)[1] == "MixtralForCausalLM"


@pytest.mark.parametrize("kind", list(ROPES))
def test_rotary_scalings(kind: str, tmp_path: Path) -> None:
    """Llama 3's is a tensor of what frequencies are divided by."""
    settings = ROPES[kind]
    model = hf_models.make("LlamaForCausalLM", 2, rope_parameters=settings)
    tensors = {}
    if kind == "llama3":
        plain = 100.0 ** -(np.arange(0, 8, 2) / 8)
        tensors["rope_freqs.weight"] = plain / model.model.rotary_emb.inv_freq.numpy()

    def facts(w: gguf.GGUFWriter) -> None:
        if kind != "llama3":
            w.add_rope_scaling_type(gguf.RopeScalingType(kind))
            w.add_rope_scaling_factor(settings["factor"])
        if kind == "yarn":
            w.add_rope_scaling_orig_ctx_len(16)

    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    same(model, write_model(tmp_path / "m.gguf", model, "llama", facts=facts, tensors=tensors))


def test_long_rope(tmp_path: Path) -> None:
    r = np.random.default_rng(0)
    short, long = (1 + r.random(4, dtype=np.float32) * n for n in (1, 8))
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short.tolist(),
            "long_factor": long.tolist()}  # fmt: skip
    # transformers takes the short ones for a text below the original length.
    model = hf_models.make(
        "Phi3ForCausalLM", 2, rope_parameters=rope, original_max_position_embeddings=32
    )

    def facts(w: gguf.GGUFWriter) -> None:
        w.add_rope_scaling_orig_ctx_len(32)
        w.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(2) / np.log(32))))

    tensors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    path = write_model(tmp_path / "m.gguf", model, "phi3", facts=facts, tensors=tensors)
    same(model, path, context_length=32)


WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 1}


@pytest.mark.parametrize("name", ["F16", "BF16", *(f for f in FORMATS if f != "MXFP4")])
def test_quantised_models(name: str, tmp_path: Path) -> None:
    """The weights are what the blocks mean, in every format."""
    model = hf_models.make("LlamaForCausalLM", 1, initializer_range=0.05, **WIDE)
    same(model, write_model(tmp_path / "m.gguf", model, "llama", Q[name]))


def test_transformers_reads_the_same(tmp_path: Path) -> None:
    """An independent reader of the same file, order of heads included."""
    model = hf_models.make("LlamaForCausalLM", 1, intermediate_size=64)
    tokens = {"ggml.model": "gpt2", "ggml.tokens": [f"t{i}" for i in range(97)]}
    path = write_model(tmp_path / "m.gguf", model, "llama", Q.Q8_0, tokenizer=tokens)
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    config = transformers.LlamaConfig(**loaded["config"])
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.load_state_dict(loaded["tensors"])
    same(theirs, path)


@pytest.mark.parametrize("name", [*INTEGERS, "Q6_K"])
def test_packed_weights_are_the_file_s(name: str, tmp_path: Path) -> None:
    """Native kernels keep the integers in bfloat16: only activations are rounded. Logits are nearer
    to the exact ones than those of weights rounded to bfloat16 would have to be."""
    model = hf_models.make("LlamaForCausalLM", 1, initializer_range=0.05, **WIDE)
    path = write_model(tmp_path / "m.gguf", model, "llama", Q[name])
    paged = Paged(str(path), 4, 1, dtype="bfloat16", cpu_kernels="native")
    formats = {layer.packed.format for layer in paged.worker.model.stored() if layer.packed}
    if name in INTEGERS:
        fields, _ = read_config(path)
        checkpoint = open_checkpoint(path, fields)
        for weight in ("model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"):
            exact = checkpoint.read(weight)
            found = checkpoint.quantised(weight)
            assert isinstance(found, Quantised)
            assert found.bits == checkpoint.bits(weight) == INTEGERS[name][0]
            assert np.abs(found.dense() - exact).max() <= 1e-6 * np.abs(exact).max()
        assert any(f.startswith(f"w{INTEGERS[name][0]}") for f in formats), formats
        assert paged.worker.info["quantization"] == "gguf"
    else:
        assert formats == {"bf16"}
    sequence = Sequence(TEXT)
    paged.advance([(sequence, len(TEXT))])
    want = hf_models.logits(model, TEXT)
    assert (sequence.result - want).abs().max() < 0.03 * want.abs().max()
