"""Published configs, which leave out what the text model's own would say, make models of the sizes
that were published."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sglang.srt.layers.weight import Place
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.registry import lookup

CLIP = {
    "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
    "model_type": "clip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 24,
    "patch_size": 14, "projection_dim": 768, "vocab_size": 32000,
}  # fmt: skip
# The last layer of CLIP's tower and the norm behind it, which are not read.
UNREAD = 12_596_224 + 2 * 1024
RELEASES: list[tuple[str, dict[str, Any], int]] = [
    (  # llava-1.5-7b
        "LlavaForConditionalGeneration",
        {
            "image_token_index": 32000, "vision_config": CLIP, "vision_feature_layer": -2,
            "text_config": {
                "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096,
                "model_type": "llama", "rms_norm_eps": 1e-5, "vocab_size": 32064,
            },
        },
        7_063_427_072 - UNREAD,
    ),
    (  # llava-v1.6-mistral-7b
        "LlavaNextForConditionalGeneration",
        {
            "image_token_index": 32000, "vision_config": CLIP, "vision_feature_layer": -2,
            "text_config": {
                "intermediate_size": 14336, "max_position_embeddings": 32768,
                "model_type": "mistral", "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
                "rope_theta": 1e6, "sliding_window": None, "vocab_size": 32064,
            },
        },
        7_566_747_648 - UNREAD,
    ),
    (  # Qwen2.5-VL-7B
        "Qwen2_5_VLForConditionalGeneration",
        {
            "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
            "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
            "max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 28,
            "tie_word_embeddings": False, "eos_token_id": 151645,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            "vision_config": {
                "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
                "in_chans": 3, "out_hidden_size": 3584, "window_size": 112,
                "fullatt_block_indexes": [7, 15, 23, 31],
            },
        },
        8_292_166_656,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "config", "parameters"), RELEASES)
def test_sizes(architecture: str, config: dict[str, Any], parameters: int) -> None:
    family = lookup(architecture)
    spec = family.read(Fields(config, "none/config.json"), architecture)
    model = family(spec, Place(torch.device("meta"), torch.float32), 1)
    assert sum(math.prod(slot.shape) for slot in model.slots().values()) == parameters
    assert not any(map(model.ignores, model.slots()))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"vision_config": {**CLIP, "model_type": "resnet"}}, "supported are clip_vision_model"),
        ({"vision_config": {**CLIP, "num_attention_heads": 7}}, "a multiple of the 7 heads"),
        ({"text_config": {"model_type": "opt"}}, "supported are llama, mistral, qwen2"),
        ({"vision_feature_layer": 25}, "the tower has 24 layers"),
        ({"vision_feature_layer": []}, "it must name a layer"),
        ({"projector_hidden_act": "sine"}, "projector_hidden_act is 'sine'; supported are"),
    ],
)
def test_configs_that_cannot_be_followed(more: dict[str, Any], problem: str) -> None:
    architecture, config, _ = RELEASES[0]
    with pytest.raises(ValueError, match=problem):
        lookup(architecture).read(Fields({**config, **more}, "none/config.json"), architecture)


@pytest.mark.parametrize(
    ("vision", "problem"),
    [
        ({"num_heads": 7}, "need multiples of 4"),
        ({"out_hidden_size": 9}, "the text model's is 3584"),
        ({"window_size": 27}, "must hold 28 pixels"),
        ({"fullatt_block_indexes": "all"}, "must list numbers"),
        ({"in_chans": 1}, "it must be 3"),
    ],
)
def test_qwen_configs_that_cannot_be_followed(vision: dict[str, Any], problem: str) -> None:
    architecture, config, _ = RELEASES[2]
    changed = {**config, "vision_config": {**config["vision_config"], **vision}}
    with pytest.raises(ValueError, match=problem):
        lookup(architecture).read(Fields(changed, "none/config.json"), architecture)
