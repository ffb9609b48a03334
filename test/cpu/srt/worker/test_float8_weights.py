"""Published float8 checkpoints whose products are computed in float8."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers import hf_models, quantised
from helpers.paged import Paged, Sequence
from sglang.srt.config import Config
from sglang.srt.layers import float8_product
from sglang.srt.layers.float8_product import reference
from sglang.srt.worker import storage
from sglang.srt.worker.model_loading import plan_of
from torch import Tensor

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "initializer_range": 0.2}
TEXTS = [[random.Random(n).randrange(97) for _ in range(n)] for n in (40, 1, 13)]
NAMES = ("fp8-tensor", "fp8-channel", "fp8-block", "fp8-deepseek")
MATRICES = 2 * 4  # layers; q k v, o, gate up, down


class Made(NamedTuple):
    """``logits``: of transformers on the dequantised weights; ``float8``: with the projections'
    inputs rounded to float8 too."""

    path: str
    logits: list[Tensor]
    float8: list[Tensor]


def rounded(x: Tensor, group: int) -> Tensor:
    """The numbers that float8 values and a scale for each group hold."""
    parts = []
    for part in x.split(group, -1):
        scale = part.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
        parts.append((part / scale).to(torch.float8_e4m3fn).float() * scale)
    return torch.cat(parts, -1)


@pytest.fixture(scope="module", params=NAMES)
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp(request.param)
    model = hf_models.make("Qwen2ForCausalLM", 3, **SIZES, tie_word_embeddings=False)
    hf_models.save(model, path)
    quantised.convert(path, model, quantised.FORMATS[request.param])
    logits = [hf_models.logits(model, text) for text in TEXTS]
    group = {"fp8-block": 32, "fp8-deepseek": 128}.get(request.param, 1 << 20)
    for name, part in model.named_modules():
        if name.endswith("_proj"):
            part.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0], group),))
    return Made(str(path), logits, [hf_models.logits(model, text) for text in TEXTS])


def run(path: str, **settings: Any) -> tuple[Paged, list[Tensor]]:
    paged = Paged(path, 4, 1, **{"cpu_kernels": "torch", **settings})
    sequences = [Sequence(text) for text in TEXTS]
    paged.advance([(s, len(s.tokens)) for s in sequences])
    return paged, [s.result for s in sequences]


def layers(paged: Paged) -> list[Any]:
    return [layer for layer in paged.worker.model.stored() if layer.float8 is not None]


def by_reference(x: Tensor, weight: Any) -> Tensor:
    return reference(x, weight).to(x.dtype)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product called torch is the reference, which knows groups of inputs too."""
    monkeypatch.setattr(float8_product, "_lacks", lambda *_: "")
    monkeypatch.setitem(float8_product.PRODUCTS, "torch", by_reference)


def test_logits_are_those_of_float8_activations(made: Made, emulated: None) -> None:
    """Another order of sums may move an activation to the next value of float8."""
    paged, found = run(made.path, fp8_gemm_backend="torch")
    assert len(layers(paged)) == MATRICES
    for got, want in zip(found, made.float8):
        assert (got - want).norm() < 0.03 * want.norm()
    _, exact = run(made.path, fp8_gemm_backend="none")
    assert any(not torch.equal(a, b) for a, b in zip(found, exact))


def test_torchs_products_give_the_emulated_logits(made: Made) -> None:
    if Path(made.path).name.startswith("fp8-block"):
        with pytest.raises(ValueError, match="scales of groups of inputs need triton"):
            run(made.path, fp8_gemm_backend="torch")
        return
    _, found = run(made.path, fp8_gemm_backend="torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(float8_product.PRODUCTS, "torch", by_reference)
        _, want = run(made.path, fp8_gemm_backend="torch")
    for a, b in zip(found, want):
        assert (a - b).norm() < 0.03 * b.norm(), "the order of sums may move a value in float8"


def test_weights_take_a_byte_each(made: Made, emulated: None) -> None:
    paged, _ = run(made.path, fp8_gemm_backend="torch", dtype="bfloat16")
    for layer in layers(paged):
        assert layer.weight.numel() == 0
        assert layer.float8.weight.values.element_size() == 1
    sizes = []
    for backend in ("torch", "none"):
        settings: dict[str, Any] = {"cpu_kernels": "torch", "dtype": "bfloat16", "device": "cpu"}
        config = Config.of(model_path=made.path, fp8_gemm_backend=backend, **settings)
        sizes.append(plan_of(config).storage.weight_bytes)
    held = sum(layer.float8.weight.values.numel() for layer in layers(paged))
    assert sizes[1] - sizes[0] == int(held * (2 - storage.FLOAT8_BYTES))


def test_a_cpu_keeps_activations_as_they_are(made: Made) -> None:
    paged, found = run(made.path)
    assert not layers(paged)
    for got, want in zip(found, made.logits):
        assert (got - want).abs().max() < 1e-4


def test_a_wrong_product_is_passed_over(made: Made, emulated: None, monkeypatch: Any) -> None:
    """The check at the start refuses it; "auto" goes on with floats, a name ends the start."""
    monkeypatch.setitem(float8_product.PRODUCTS, "torch", lambda x, w: by_reference(x, w) * 1.05)
    monkeypatch.setattr(storage, "choose_product", lambda *_: ("torch", "injected"))
    paged, found = run(made.path)
    assert not layers(paged)
    (line,) = paged.worker.info["fallbacks"]
    assert "float8 products by torch failed (ValueError: its products of 1 tokens differ" in line
    assert line.endswith("weights become float32")
    for got, want in zip(found, made.logits):
        assert (got - want).abs().max() < 1e-4
    with pytest.raises(ValueError, match="use --fp8-gemm-backend none"):
        run(made.path, fp8_gemm_backend="torch")


def test_native_kernels_and_float8_products_exclude_each_other(made: Made) -> None:
    with pytest.raises(ValueError, match="native CPU kernels compute in bfloat16; leave it out"):
        run(made.path, cpu_kernels="native", fp8_gemm_backend="torch")
