"""Registry: architecture names, as checkpoints spell them, and the classes that implement them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sglang.srt.models.causal import CausalLM
from sglang.srt.models.cohere import CohereForCausalLM
from sglang.srt.models.cohere2 import Cohere2ForCausalLM
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.models.deepseek_v2 import DeepseekV2ForCausalLM
from sglang.srt.models.deepseek_v3 import DeepseekV3ForCausalLM
from sglang.srt.models.gemma2 import Gemma2ForCausalLM
from sglang.srt.models.gemma3 import Gemma3ForCausalLM, Gemma3ForConditionalGeneration
from sglang.srt.models.gpt2 import GPT2LMHeadModel
from sglang.srt.models.gpt_neox import GPTNeoXForCausalLM
from sglang.srt.models.gpt_oss import GptOssForCausalLM
from sglang.srt.models.granite import GraniteForCausalLM
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.llava import LlavaForConditionalGeneration
from sglang.srt.models.llava_next import (
    LlavaNextForConditionalGeneration,
    LlavaNextVideoForConditionalGeneration,
)
from sglang.srt.models.llava_onevision import LlavaOnevisionForConditionalGeneration
from sglang.srt.models.mistral import MistralForCausalLM
from sglang.srt.models.mixtral import MixtralForCausalLM
from sglang.srt.models.olmo2 import Olmo2ForCausalLM
from sglang.srt.models.olmo3 import Olmo3ForCausalLM
from sglang.srt.models.olmoe import OlmoeForCausalLM
from sglang.srt.models.phi3 import Phi3ForCausalLM
from sglang.srt.models.qwen2 import Qwen2ForCausalLM
from sglang.srt.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration
from sglang.srt.models.qwen2_moe import Qwen2MoeForCausalLM
from sglang.srt.models.qwen3 import Qwen3ForCausalLM
from sglang.srt.models.qwen3_moe import Qwen3MoeForCausalLM
from sglang.srt.models.smollm3 import SmolLM3ForCausalLM
from sglang.srt.models.starcoder2 import Starcoder2ForCausalLM
from sglang.srt.models.variants import classifier, headless

MODELS: dict[str, type[DecoderModel]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": MistralForCausalLM,
    "MixtralForCausalLM": MixtralForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen2MoeForCausalLM": Qwen2MoeForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Qwen3MoeForCausalLM": Qwen3MoeForCausalLM,
    "Gemma2ForCausalLM": Gemma2ForCausalLM,
    "Gemma3ForCausalLM": Gemma3ForCausalLM,
    "Gemma3ForConditionalGeneration": Gemma3ForConditionalGeneration,
    "DeepseekV2ForCausalLM": DeepseekV2ForCausalLM,
    "DeepseekV3ForCausalLM": DeepseekV3ForCausalLM,
    "GptOssForCausalLM": GptOssForCausalLM,
    "GPT2LMHeadModel": GPT2LMHeadModel,
    "GPTNeoXForCausalLM": GPTNeoXForCausalLM,
    "Starcoder2ForCausalLM": Starcoder2ForCausalLM,
    "CohereForCausalLM": CohereForCausalLM,
    "Cohere2ForCausalLM": Cohere2ForCausalLM,
    "GraniteForCausalLM": GraniteForCausalLM,
    "Olmo2ForCausalLM": Olmo2ForCausalLM,
    "Olmo3ForCausalLM": Olmo3ForCausalLM,
    "OlmoeForCausalLM": OlmoeForCausalLM,
    "Phi3ForCausalLM": Phi3ForCausalLM,
    "SmolLM3ForCausalLM": SmolLM3ForCausalLM,
    "LlavaForConditionalGeneration": LlavaForConditionalGeneration,
    "LlavaNextForConditionalGeneration": LlavaNextForConditionalGeneration,
    "LlavaNextVideoForConditionalGeneration": LlavaNextVideoForConditionalGeneration,
    "LlavaOnevisionForConditionalGeneration": LlavaOnevisionForConditionalGeneration,
    "Qwen2_5_VLForConditionalGeneration": Qwen2_5_VLForConditionalGeneration,
}

# Endings in place of ForCausalLM, of models that do not generate.
VARIANTS: dict[str, Callable[[type[CausalLM]], type[CausalLM]]] = {
    "ForSequenceClassification": classifier,
    "Model": headless,
}
# Stems of those names that differ from the stem before ForCausalLM.
STEMS = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}
# Config keys that few architectures have; the first that a config holds names the nearest one.
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


def register(architecture: str, family: type[DecoderModel]) -> None:
    """Make a family known under a name. Raises ValueError where the name has another one."""
    if MODELS.setdefault(architecture, family) is not family:
        raise ValueError(f"architecture {architecture!r} is {MODELS[architecture].__name__}'s.")


def lookup(architecture: str, config: Mapping[str, Any] | None = None) -> type[DecoderModel]:
    """The class of an architecture. Raises ValueError for an unknown one; the message lists those
    supported and the nearest, by name and by the checkpoint's ``config``."""
    if architecture in MODELS:
        return MODELS[architecture]
    for ending, make in VARIANTS.items():
        stem = architecture.removesuffix(ending)
        family = MODELS.get(STEMS.get(stem, f"{stem}ForCausalLM"))
        if architecture.endswith(ending) and family is not None and issubclass(family, CausalLM):
            return make(family)
    raise ValueError(_unsupported(architecture, config or {}, MODELS))


def _nearest_by_name(architecture: str, known: Iterable[str]) -> str:
    """The known architecture with the nearest name, "" where none is near."""
    # A common ending makes no name near.
    ending, cutoff = (ENDING, 0.7) if architecture.endswith(ENDING) else ("", 0.85)
    short = {name.removesuffix(ending).lower(): name for name in known}
    wanted = architecture.removesuffix(ending).lower()
    near = difflib.get_close_matches(wanted, short, n=1, cutoff=cutoff)
    return short[near[0]] if near else ""


def _nearest_by_config(config: Mapping[str, Any], known: Iterable[str]) -> str:
    """The known architecture with the config's ``model_type`` or telling keys, "" for none."""
    known = set(known)
    kind = str(config.get("model_type", "")).replace("_", "").replace("-", "").lower()
    for name in sorted(known):
        if kind and name.removesuffix(ENDING).lower() == kind:
            return name
    inner = config.get("text_config")
    keys = {*config, *(inner if isinstance(inner, dict) else ())}
    return next((name for key, name in TELLING.items() if key in keys and name in known), "")


def _unsupported(architecture: str, config: Mapping[str, Any], known: Iterable[str]) -> str:
    """The error message for an architecture that is not known."""
    known = sorted(known, key=lambda name: name.removesuffix(ENDING))
    plain = ", ".join(name.removesuffix(ENDING) for name in known if name.endswith(ENDING))
    others = ", ".join(name for name in known if not name.endswith(ENDING))
    text = f"architecture {architecture!r} is not supported. Supported are {plain} ({ENDING})"
    text += f", and {others}." if others else "."
    if config.get("auto_map"):
        text += " Code that the checkpoint brings (auto_map) is never run."
    if near := _nearest_by_name(architecture, known):
        text += f" The nearest name is {near}."
    if like := _nearest_by_config(config, known):
        text += (
            f" Its config is most like that of {like}: if it is the same model under another "
            f"name, write that as its architecture in config.json."
        )
    return f"{text} docs/adding-a-model.md tells how to add one."
