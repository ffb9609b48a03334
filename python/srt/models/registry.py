"""Registry: architecture names, as checkpoints spell them, and the classes that implement them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sglang.srt.models.causal import CausalLM
from sglang.srt.models.cohere import CohereForCausalLM
from sglang.srt.models.cohere2 import Cohere2ForCausalLM
from sglang.srt.models.deepseek_v2 import DeepseekV2ForCausalLM
from sglang.srt.models.deepseek_v3 import DeepseekV3ForCausalLM
from sglang.srt.models.gemma2 import Gemma2ForCausalLM
from sglang.srt.models.gemma3 import Gemma3ForCausalLM, Gemma3ForConditionalGeneration
from sglang.srt.models.gpt2 import GPT2LMHeadModel
from sglang.srt.models.gpt_neox import GPTNeoXForCausalLM
from sglang.srt.models.gpt_oss import GptOssForCausalLM
from sglang.srt.models.granite import GraniteForCausalLM
from sglang.srt.models.heads import classifier, headless
from sglang.srt.models.kin import unknown
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.llava import LlavaForConditionalGeneration
from sglang.srt.models.llava_next import (
    LlavaNextForConditionalGeneration,
    LlavaNextVideoForConditionalGeneration,
)
from sglang.srt.models.llava_onevision import LlavaOnevisionForConditionalGeneration
from sglang.srt.models.mistral import MistralForCausalLM
from sglang.srt.models.mixtral import MixtralForCausalLM
from sglang.srt.models.model import Model
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

MODELS: dict[str, type[Model]] = {
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

# What stands for ForCausalLM in the names of models that write nothing.
VARIANTS: dict[str, Callable[[type[CausalLM]], type[CausalLM]]] = {
    "ForSequenceClassification": classifier,
    "Model": headless,
}
# What stands before them, where that is not what stands before ForCausalLM.
STEMS = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}


def register(architecture: str, family: type[Model]) -> None:
    """Make a family known under a name. Raises ValueError where the name has another one."""
    if MODELS.setdefault(architecture, family) is not family:
        raise ValueError(f"architecture {architecture!r} is {MODELS[architecture].__name__}'s.")


def lookup(architecture: str, config: Mapping[str, Any] | None = None) -> type[Model]:
    """Raises ValueError, listing what is supported and the nearest kin, for an unknown name;
    ``config`` is the checkpoint's, for what it is like."""
    if architecture in MODELS:
        return MODELS[architecture]
    for ending, make in VARIANTS.items():
        stem = architecture.removesuffix(ending)
        family = MODELS.get(STEMS.get(stem, f"{stem}ForCausalLM"))
        if architecture.endswith(ending) and family is not None and issubclass(family, CausalLM):
            return make(family)
    raise ValueError(unknown(architecture, config or {}, MODELS))
