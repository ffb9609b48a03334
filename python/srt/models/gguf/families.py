"""Families: for each architecture of GGUF files ours, and what its tensors and settings are called
in a Hugging Face checkpoint.

The names are llama.cpp's (``blk.0.attn_q.weight``). What it changes in the values on the way is
named here and undone in ``models/gguf/gguf_checkpoint``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from sglang.srt.files.gguf import Tensor
from sglang.srt.models.config_fields import Fields

Change: TypeAlias = Literal["", "pairs", "above one", "transposed"]
# pairs:       rows of a head are in the order of pairs that turn together
# above one:   1 was added to the gain
# transposed:  a matrix is stored [outputs, inputs], the checkpoint's [inputs, outputs]

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip
LLAMA = {
    **ATTENTION, "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
GEMMA = {
    **LLAMA, "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
PHI3 = {**LLAMA, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
OLMO2 = {
    **LLAMA, "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
STARCODER2 = {**LLAMA, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
# "{}" is an expert: one tensor of the file is one of each expert.
MIXTRAL = {
    **ATTENTION, "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}  # fmt: skip
MIXTURE = {
    **LLAMA, "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj", "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """Metadata of a file: ``facts`` by their names without the architecture, the tensors, and the
    values of small ones."""

    facts: Fields
    tensors: Mapping[str, Tensor]
    numbers: Callable[[str], list[float]]

    def rows(self, stem: str) -> int | None:
        """Outputs of a matrix of the first layer, None where it has none."""
        tensor = self.tensors.get(f"blk.0.{stem}.weight")
        return tensor.shape[-2] if tensor is not None and len(tensor.shape) > 1 else None


@dataclass(frozen=True)
class Family:
    """Names of an architecture's tensors and settings in a Hugging Face checkpoint.

    A stem is a tensor's name in the GGUF file without ``blk.N.`` and ``.weight``.

    Attributes:
        architecture: its name in ``config.json``.
        layer: from the stems of a layer's tensors to their names in the checkpoint.
        settings: settings of the config that differ from ``models/gguf/gguf_config.decoder``'s.
        top: like ``layer``, for the tensors that belong to no layer.
        layers: how the names of a layer's tensors begin in the checkpoint.
        changes: change of the values, by stem; "*_norm" stands for every norm without an own entry.
    """

    architecture: str
    layer: Mapping[str, str]
    settings: Callable[[Header], dict[str, Any]] = lambda header: {}
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    layers: str = "model.layers."
    changes: Mapping[str, Change] = field(default_factory=dict)

    def change(self, stem: str) -> Change:
        found = self.changes.get(stem)
        return found or (self.changes.get("*_norm", "") if stem.endswith("_norm") else "")


def _biases(header: Header) -> dict[str, Any]:
    return {
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
    }


def _gemma(header: Header, largest: int) -> dict[str, Any]:
    """``largest``: layers of the one size whose scores are scaled by the width per head."""
    facts = header.facts
    heads, width = facts.int("attention.head_count"), facts.int("embedding_length")
    odd = facts.int("block_count") == largest
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width / heads if odd else facts.int("attention.key_length", 256),
        "sliding_window": facts.int("attention.sliding_window", 4096),
    }


def _gemma2(header: Header) -> dict[str, Any]:
    return {
        **_gemma(header, 46),
        "attn_logit_softcapping": header.facts.float("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": header.facts.float("final_logit_softcapping", 30.0),
    }


def _gemma3(header: Header) -> dict[str, Any]:
    local = header.facts.float("rope.freq_base_swa", 10000.0, low=1.0)
    return {**_gemma(header, 62), "rope_local_base_freq": local, "sliding_window_pattern": 6}


def _phi3(header: Header) -> dict[str, Any]:
    return {"sliding_window": header.facts.int("attention.sliding_window", 0, low=0) or None}


def _starcoder2(header: Header) -> dict[str, Any]:
    return {
        "hidden_act": "gelu_pytorch_tanh", "use_bias": "blk.0.attn_q.bias" in header.tensors,
        "norm_epsilon": header.facts.float("attention.layer_norm_epsilon", 1e-5),
        "sliding_window": header.facts.int("attention.sliding_window", 0, low=0) or None,
    }  # fmt: skip


def _granite(header: Header) -> dict[str, Any]:
    facts, scale = header.facts, header.facts.int("attention.key_length", 0, low=0)
    dim = scale or max(facts.int("embedding_length") // facts.int("attention.head_count"), 1)
    return {
        **_biases(header),
        "attention_multiplier": facts.float("attention.scale", dim**-0.5, low=1e-9),
        "embedding_multiplier": facts.float("embedding_scale", 1.0),
        "residual_multiplier": facts.float("residual_scale", 1.0),
        "logits_scaling": facts.float("logit_scale", 1.0),
    }


def _gpt2(header: Header) -> dict[str, Any]:
    return {"hidden_act": "gelu_new", "n_inner": header.facts.int("feed_forward_length")}


def _experts(header: Header) -> dict[str, Any]:
    facts = header.facts
    return {
        "num_local_experts": facts.int("expert_count"),
        "num_experts": facts.int("expert_count"),
        "num_experts_per_tok": facts.int("expert_used_count"),
    }


def _qwen_experts(header: Header, renormalise: bool) -> dict[str, Any]:
    """The experts' widths are those of their tensors where the file does not say."""
    inner, shared = header.rows("ffn_gate_exps"), header.rows("ffn_gate_shexp")
    return {
        **_experts(header),
        "norm_topk_prob": renormalise,
        "moe_intermediate_size": header.facts.int("expert_feed_forward_length", inner),
        "shared_expert_intermediate_size": shared,
    }


PAIRS: dict[str, Change] = {"attn_q": "pairs", "attn_k": "pairs"}
ABOVE_ONE: dict[str, Change] = {"*_norm": "above one"}
GPT2 = Family(
    "GPT2LMHeadModel",
    {
        "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
    },
    _gpt2,
    top={
        "token_embd": "transformer.wte", "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f", "output": "lm_head",
    },
    layers="transformer.h.",
    changes=dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), "transposed"),
)  # fmt: skip
FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", LLAMA, _biases, changes=PAIRS),
    "qwen2": Family("Qwen2ForCausalLM", LLAMA),
    "qwen3": Family("Qwen3ForCausalLM", LLAMA),
    "gemma2": Family("Gemma2ForCausalLM", GEMMA, _gemma2, changes=ABOVE_ONE),
    "gemma3": Family("Gemma3ForCausalLM", GEMMA, _gemma3, changes=ABOVE_ONE),
    "gpt2": GPT2,
    "phi3": Family("Phi3ForCausalLM", PHI3, _phi3),
    "olmo2": Family("Olmo2ForCausalLM", OLMO2),
    "starcoder2": Family("Starcoder2ForCausalLM", STARCODER2, _starcoder2),
    "smollm3": Family("SmolLM3ForCausalLM", LLAMA, _biases, changes=PAIRS),
    "granite": Family("GraniteForCausalLM", LLAMA, _granite, changes=PAIRS),
    "qwen2moe": Family("Qwen2MoeForCausalLM", MIXTURE, lambda h: _qwen_experts(h, False)),
    "qwen3moe": Family("Qwen3MoeForCausalLM", MIXTURE, lambda h: _qwen_experts(h, True)),
}
# "llama" with experts.
MIXTRAL_FAMILY = Family("MixtralForCausalLM", MIXTRAL, _experts, changes=PAIRS)
