"""The writers of passes: which words a tape has, and when a value may be used."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from helpers import hf_models, vision
from sgl_kernel import native
from sgl_kernel.packed import Arena
from sgl_kernel.tape import Tape
from sglang.srt.layers.linear import ColumnLinear, RowLinear
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.pass_writer import PassWriter
from sglang.srt.layers.tape_writer import TapeWords, TapeWriter, missing_word
from sglang.srt.layers.torch_writer import TorchWriter
from sglang.srt.layers.weight import HostPlace, OutlinePlace
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.registry import lookup
from sglang.srt.numeric.host_arrays import FLOAT32, HOST
from sglang.srt.parallel.groups import Group

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}


def missing(architecture: str, config: Any, group: Group | None = None) -> str:
    family = lookup(architecture)
    spec = family.read(Fields(config.to_dict(), "config.json"), architecture)
    return missing_word(family(spec, OutlinePlace(HOST, FLOAT32, group or Group()), 1))


def words(writer: type) -> dict[str, list[str]]:
    """Names of the arguments of a writer's words."""
    found = inspect.getmembers(writer, inspect.isfunction)
    return {
        name: list(inspect.signature(word).parameters)
        for name, word in found
        if not name.startswith("_")
    }


def test_writers_have_the_words() -> None:
    wanted = words(PassWriter)
    assert words(TorchWriter) == wanted
    assert words(TapeWriter) == wanted


@pytest.mark.parametrize(
    ("architecture", "settings", "word"),
    [
        ("LlamaForCausalLM", {}, ""),
        ("DeepseekV2ForCausalLM", {}, ""),
        ("CohereForCausalLM", {}, ""),
        ("CohereForCausalLM", {"use_qk_norm": True}, ""),
    ],
)
def test_the_missing_word_is_named(architecture: str, settings: Any, word: str) -> None:
    assert missing(architecture, hf_models.config(architecture, **settings)) == word


def test_norms_of_all_heads_are_of_one_rank() -> None:
    config = hf_models.config("Olmo2ForCausalLM", **HEADS)
    assert not missing("Olmo2ForCausalLM", config)
    ranks = Group(0, 2)
    assert missing("Olmo2ForCausalLM", config, ranks) == "norms over the heads of all ranks"


def test_the_text_model_decides() -> None:
    name = "Qwen2_5_VLForConditionalGeneration"
    assert not missing(name, vision.config(name))
    name = "LlavaForConditionalGeneration"
    assert not missing(name, vision.config(name))


def test_words_need_no_weights() -> None:
    with pytest.raises(Exception, match="whisper"):
        TapeWords().whisper  # noqa: B018
    assert TapeWords().add_positions(table=None) is None


@pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")
def test_a_read_is_used_before_the_next_addition() -> None:
    """The product that reads the stream norms it, so it would read what was added, too."""
    place = HostPlace(HOST, FLOAT32)
    norm = RMSNorm(8, 1e-5, place)
    up, down = ColumnLinear(8, {"up": 16}, False, place), RowLinear(16, "down", 8, False, place)
    for layer in (up, down):
        layer.weight[...] = 1
        layer.pack("f32", 1, Arena(1 << 16))
    norm.weight[...] = np.ones(8)
    w = TapeWriter(Tape(), [])
    w.input(8)
    x = w.read(norm)
    w.add(down, w.product(x, up))
    with pytest.raises(ValueError, match="added to after it was read"):
        w.product(x, up)
    first = w.stream
    x = w.read(norm)
    [chosen] = w.choose(x)
    assert chosen.buffer == w.stream != first, "the stream is copied once"
    w.product(chosen, up)
