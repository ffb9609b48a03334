"""Quantised checkpoints: the weights that the formats define, and logits of transformers running
on them."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers import hf_models, quantised
from helpers.paged import Paged, Sequence
from sgl_kernel import native
from sglang.srt.models.checkpoint_format import open_checkpoint
from sglang.srt.models.model_spec import read_config
from sglang.srt.numeric.host_arrays import tensor

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "initializer_range": 0.2}
TEXTS = [[random.Random(n).randrange(97) for _ in range(n)] for n in (40, 1, 13)]


class Made(NamedTuple):
    path: Path
    format: quantised.Format
    dense: dict[str, torch.Tensor]
    logits: list[torch.Tensor]


@pytest.fixture(scope="module", params=quantised.FORMATS)
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp(request.param)
    # Biases on q, k and v; a head that stays plain.
    model = hf_models.make("Qwen2ForCausalLM", 3, **SIZES, tie_word_embeddings=False)
    hf_models.save(model, path)
    format = quantised.FORMATS[request.param]
    dense = quantised.convert(path, model, format)
    return Made(path, format, dense, [hf_models.logits(model, text) for text in TEXTS])


def test_the_weights_that_the_format_defines(made: Made) -> None:
    config, _ = read_config(made.path)
    checkpoint = open_checkpoint(made.path, config)
    assert checkpoint.method == made.format.config["quant_method"]
    assert made.dense.keys() <= checkpoint.shapes.keys()
    for name, wanted in made.dense.items():
        read = tensor(checkpoint.read(name))
        assert read.shape == wanted.shape == checkpoint.shapes[name]
        # Scales of float16 and bfloat16 leave nothing to round; those of float32 one product, and
        # of doubly quantised ones a sum.
        loose = {"bnb-4-double": 4e-7}.get(made.path.name[:-1], 1.2e-7)
        assert (read.double() - wanted).abs().max() <= loose * wanted.abs().max()
        bits, integers = checkpoint.bits(name), checkpoint.quantised(name)
        assert bits == made.format.bits
        assert (integers is None) == (bits == 0 and not checkpoint.float8_group(name))
        if integers is not None:
            assert torch.equal(torch.from_numpy(integers.dense()), read)


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_logits_in_float32(made: Made, kernels: str) -> None:
    """Weights in float32: exact, whatever the format."""
    paged = Paged(str(made.path), 4, 1, cpu_kernels=kernels)
    assert paged.worker.info["quantization"] == made.format.config["quant_method"]
    for sequence, wanted in zip(_run(paged), made.logits):
        assert (sequence.result - wanted).abs().max() < 1e-4


@pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")
def test_logits_in_bfloat16(made: Made) -> None:
    """Weights as they were published, activations in bfloat16 (int8 where the format says so)."""
    paged = Paged(str(made.path), 1, 1, cpu_kernels="native", dtype="bfloat16")
    assert _held(paged) == made.format.bits
    for sequence, wanted in zip(_run(paged), made.logits):
        assert (sequence.result - wanted).abs().max() < made.format.bound * wanted.abs().max()


def _run(paged: Paged) -> list[Sequence]:
    """A part of each text, then the rest token by token."""
    sequences = [Sequence(text) for text in TEXTS]
    paged.advance([(s, math.ceil(len(s.tokens) / 2)) for s in sequences])
    while left := [s for s in sequences if s.done < len(s.tokens)]:
        paged.advance([(s, 1) for s in left])
    return sequences


def _held(paged: Paged) -> int:
    """Bits of the projections in memory; 0 where they are floats."""
    bits = {"w4z": 4, "w4m": 4, "w8z": 8, "w8m": 8, "w8": 8, "w8a8": 8}
    model: Any = paged.worker.model
    packed = [s.packed for layer in model.layers for s in layer.stored()]
    formats = {bits.get(p.format, 0) for p in packed}
    assert len(formats) == 1
    return formats.pop()
