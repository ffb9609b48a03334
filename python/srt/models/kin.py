"""Kin: what an unknown architecture is most like, by its name and by the keys of its config."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

# What few configs have, and whose they are: the first one that is there tells.
TELLING = {
    "sinks": "GptOssForCausalLM",
    "kv_lora_rank": "DeepseekV2ForCausalLM",
    "num_local_experts": "MixtralForCausalLM",
    "num_experts": "Qwen2MoeForCausalLM",
    "n_routed_experts": "DeepseekV3ForCausalLM",
    "final_logit_softcapping": "Gemma2ForCausalLM",
    "query_pre_attn_scalar": "Gemma3ForCausalLM",
    "residual_multiplier": "GraniteForCausalLM",
    "logit_scale": "CohereForCausalLM",
    "no_rope_layers": "SmolLM3ForCausalLM",
    "n_embd": "GPT2LMHeadModel",
    "rotary_pct": "GPTNeoXForCausalLM",
    "norm_epsilon": "Starcoder2ForCausalLM",
    "rms_norm_eps": "LlamaForCausalLM",
}
ENDING = "ForCausalLM"


def by_name(architecture: str, known: Iterable[str]) -> str:
    """The known name that is nearest, "" where none is near."""
    # What all names end with makes none of them near.
    ending, cutoff = (ENDING, 0.7) if architecture.endswith(ENDING) else ("", 0.85)
    short = {name.removesuffix(ending).lower(): name for name in known}
    wanted = architecture.removesuffix(ending).lower()
    near = difflib.get_close_matches(wanted, short, n=1, cutoff=cutoff)
    return short[near[0]] if near else ""


def by_config(config: Mapping[str, Any], known: Iterable[str]) -> str:
    """The known name whose ``model_type`` or whose telling keys ``config`` has, "" where none."""
    known = set(known)
    kind = str(config.get("model_type", "")).replace("_", "").replace("-", "").lower()
    for name in sorted(known):
        if kind and name.removesuffix(ENDING).lower() == kind:
            return name
    inner = config.get("text_config")
    keys = {*config, *(inner if isinstance(inner, dict) else ())}
    return next((name for key, name in TELLING.items() if key in keys and name in known), "")


def unknown(architecture: str, config: Mapping[str, Any], known: Iterable[str]) -> str:
    """What to say of an architecture that is not among the known ones."""
    known = sorted(known, key=lambda name: name.removesuffix(ENDING))
    plain = ", ".join(name.removesuffix(ENDING) for name in known if name.endswith(ENDING))
    others = ", ".join(name for name in known if not name.endswith(ENDING))
    text = f"architecture {architecture!r} is not supported. Supported are {plain} ({ENDING})"
    text += f", and {others}." if others else "."
    if config.get("auto_map"):
        text += " Code that the checkpoint brings (auto_map) is never run."
    if near := by_name(architecture, known):
        text += f" The nearest name is {near}."
    if like := by_config(config, known):
        text += (
            f" Its config is most like that of {like}: if it is the same model under another "
            f"name, write that as its architecture in config.json."
        )
    return f"{text} docs/adding-a-model.md tells how to add one."
