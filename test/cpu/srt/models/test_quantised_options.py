"""Quantised checkpoints: what is refused, in which words, what is chosen; KV caches of 8 bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import hf_models, quantised
from helpers.paged import Paged, Sequence
from safetensors.torch import load_file, save_file
from sgl_kernel import native
from sglang.srt.commands.doctor.model_checks import ModelChecks
from sglang.srt.config import Config
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.formats import mxfp4
from sglang.srt.models.formats.quantised_files import QuantisedFiles
from sglang.srt.models.safetensors import SafetensorsCheckpoint
from sglang.srt.numeric.host_arrays import BFLOAT16, FLOAT16, FLOAT32, DType, tensor
from sglang.srt.worker.model_loading import plan_of
from sglang.srt.worker.model_worker import ModelWorker
from sglang.srt.worker.storage import dtype_of
from torch import Tensor

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "initializer_range": 0.2}
LAYER = "model.layers.0.mlp.down_proj."  # [64, 96]
Change = Callable[[dict[str, Tensor], dict[str, Any]], Any]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain")
    hf_models.save(hf_models.make("LlamaForCausalLM", 5, **SIZES), path)
    return path


@pytest.fixture(scope="module")
def sources(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each format."""
    out = {}
    for name, format in quantised.FORMATS.items():
        out[name] = tmp_path_factory.mktemp("source") / name
        shutil.copytree(plain, out[name])
        quantised.convert(out[name], hf_models.make("LlamaForCausalLM", 5, **SIZES), format)
    return out


def changed(source: Path, target: Path, change: Change) -> Path:
    """A copy with other tensors and another quantization_config."""
    shutil.copytree(source, target)
    tensors = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    change(tensors, config["quantization_config"])
    save_file({k: v.contiguous() for k, v in tensors.items()}, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(config))
    return target


def load(path: Path, **settings: Any) -> ModelWorker:
    return ModelWorker(
        Config.of(model_path=str(path), device="cpu", max_total_tokens=64, **settings)
    )


def put(name: str, value: Callable[[Tensor], Tensor]) -> Change:
    def change(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        tensors[LAYER + name] = value(tensors[LAYER + name])

    return change


def drop(name: str) -> Change:
    return lambda tensors, config: tensors.pop(LAYER + name)


def option(key: str, value: Any) -> Change:
    return lambda tensors, config: config.update({key: value})


def scheme(key: str, value: Any, of: str = "weights") -> Change:
    return lambda tensors, config: config["config_groups"]["group_0"][of].update({key: value})


def state(key: str, value: Any) -> Change:
    def edit(raw: Tensor) -> Tensor:
        values = json.loads(bytes(raw.tolist())) | {key: value}
        return torch.tensor(list(json.dumps(values).encode()), dtype=torch.uint8)

    return put("weight.quant_state.bitsandbytes__nf4", edit)


HOSTILE: list[tuple[str, Change, str]] = [
    # Methods and options.
    ("awq", option("quant_method", "aqlm"), "supported are awq, bitsandbytes, compressed-tensors"),
    ("awq", option("quant_method", 7), "quant_method is 7; it must be a string"),
    ("awq", option("version", "gemv_fast"), "version is 'gemv_fast'; supported is gemm"),
    ("awq", option("bits", 3), "bits is 3; supported is 4"),
    ("awq", option("zero_point", False), "zero_point is False"),
    ("awq", option("group_size", 0), "group_size is 0"),
    ("awq", option("group_size", 40), "96 inputs of .* are no multiple of the group_size 40"),
    ("awq", option("group_size", 16), r"shape \[3, 8\]; \[6, 8\] is needed"),
    ("gptq-4", option("bits", 5), "bits is 5; supported are 2, 3, 4, 8"),
    ("gptq-4", option("bits", 8), r"shape \[3, 64\]; \[2, 64\] is needed"),
    ("gptq-4", option("checkpoint_format", "marlin"), "supported are gptq, gptq_v2"),
    ("gptq-4", option("group_size", "all"), "group_size is 'all'; it must be an integer"),
    ("int4", option("format", "nvfp4-pack-quantized"), "supported are pack-quantized"),
    ("int4", option("config_groups", {}), "config_groups is {}; at least one"),
    ("int4", option("transform_config", {"config_groups": {}}), "transformed weights"),
    ("int4", scheme("num_bits", 3), "supported are int 4, int 8 and float 8"),
    ("int4", scheme("strategy", "random"), "supported are tensor, channel, group and block"),
    ("int4", scheme("group_size", 0), "group_size is 0; it must be an integer of at least 1"),
    ("fp8-block", scheme("block_structure", [32]), "two positive integers"),
    ("fp8-block", scheme("block_structure", [0, 32]), "two positive integers"),
    ("fp8-deepseek", option("weight_block_size", [64, 64]), r"shape \[1, 1\]"),
    ("fp8-deepseek", option("fmt", "e5m2"), "fmt is 'e5m2'; supported is e4m3"),
    ("bnb-8", option("load_in_8bit", False), "one of load_in_8bit and load_in_4bit"),
    # Tensors that lie.
    ("gptq-4", drop("scales"), r"lacks tensor model\.layers\.0\.mlp\.down_proj\.scales"),
    ("gptq-4", put("scales", Tensor.int), "scales has dtype I32; the format says F16"),
    ("gptq-4", put("qweight", lambda t: t[:, :-1]), "does not hold values|is needed"),
    ("gptq-4", put("qweight", lambda t: t[:0]), r"shape \[0, 64\]; \['any', 'any'\] is needed"),
    ("gptq-4", put("qweight", lambda t: t.repeat(2, 1)), r"is needed"),
    ("gptq-4-order", put("g_idx", lambda t: t + 1), "names groups 1 to 3; there are 3"),
    ("gptq-4-order", put("g_idx", lambda t: -t), "names groups -2 to 0; there are 3"),
    ("gptq-4-order", put("g_idx", lambda t: t[:0]), "is needed"),
    ("gptq-4-order", put("g_idx", lambda t: t[:7]), "does not hold values of 2, 3, 4, 8 bits"),
    ("gptq-4", option("group_size", 1 << 30), r"\[3, 64\]; \[1, 64\] is needed"),
    ("awq", put("qzeros", lambda t: t[:, :4]), r"\[3, 8\] is needed"),
    ("int4", put("weight_shape", lambda t: t * 1000), "does not hold in 4 bits"),
    ("int4", put("weight_shape", lambda t: t * 0), "does not hold in 4 bits"),
    ("int4", put("weight_shape", lambda t: t[:1]), r"shape \[1\]; \[2\] is needed"),
    ("int4", put("weight_scale", lambda t: t[:, :1]), r"\[64, 3\] is needed"),
    ("int4-order", put("weight_g_idx", lambda t: t + 9), "names groups 9 to 11; there are 3"),
    ("int4-order", put("weight_zero_point", lambda t: t[:1]), r"\[8, 3\] is needed"),
    ("w8a8-dynamic", put("weight_scale", lambda t: t[:3]), r"\[64, 1\] is needed"),
    ("fp8-channel", put("weight_scale", lambda t: t[:3]), r"\[64, 1\] is needed"),
    ("fp8-tensor", drop("weight_scale"), "lacks tensor"),
    ("bnb-8", put("SCB", lambda t: t[:3]), r"shape \[3\]; \[64\] is needed"),
    ("bnb-8", put("weight_format", lambda t: t + 1), "weight_format is not 0"),
    ("bnb-4", state("shape", [1 << 40, 1 << 40]), "must list positive integers"),
    ("bnb-4", state("shape", [64, 95]), "has 3072 bytes"),
    ("bnb-4", state("blocksize", 0), "blocksize is 0"),
    ("bnb-4", state("blocksize", 1), r"\[6144\] is needed"),
    ("bnb-4", put("weight.quant_map", lambda t: t[:8]), r"\[16\] is needed"),
    ("bnb-4", put("weight.quant_state.bitsandbytes__nf4", lambda t: t[:-3]), "not valid JSON"),
    ("bnb-4", drop("weight.quant_state.bitsandbytes__nf4"), "lacks tensor"),
    ("bnb-4-double", state("nested_blocksize", 3), "is needed"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_what_lies_is_refused(number: int, sources: dict[str, Path], tmp_path: Path) -> None:
    source, change, message = HOSTILE[number]
    path = changed(sources[source], tmp_path / "it", change)
    with pytest.raises(ValueError, match=message):
        load(path)


def test_groups_of_any_size_are_read(sources: dict[str, Path], tmp_path: Path) -> None:
    """Matrices that kernels do not support become floats: the group of each input is what g_idx
    says."""

    def uneven(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        tensors[LAYER + "g_idx"] = torch.arange(96, dtype=torch.int32).clamp(max=60) // 30

    path = changed(sources["gptq-4-order"], tmp_path / "it", uneven)
    config = json.loads((path / "config.json").read_text())["quantization_config"]
    from sglang.srt.models.formats.gptq import open_gptq

    checkpoint = open_gptq(QuantisedFiles(SafetensorsCheckpoint(path)), Fields(config, "config"))
    assert checkpoint.quantised(LAYER + "weight") is None
    tensors = load_file(path / "model.safetensors")
    q, zeros, scales = (tensors[LAYER + part] for part in ("qweight", "qzeros", "scales"))
    weight = torch.from_numpy(checkpoint.read(LAYER + "weight"))
    for i, j in ((0, 0), (63, 95), (17, 59), (40, 61), (8, 30)):
        g = min(j, 60) // 30
        value = int(q[j // 8, i]) >> (4 * (j % 8)) & 15
        zero = (int(zeros[g, i // 8]) >> (4 * (i % 8)) & 15) + 1
        assert weight[i, j] == scales[g, i].float() * (value - zero)
    load(path, dtype="bfloat16")


def test_a_bias_of_zeros_is_needless(sources: dict[str, Path], tmp_path: Path) -> None:
    """Older tools write a bias of zeros beside every GPTQ matrix. Any other bias is refused."""

    def bias(value: float) -> Change:
        return lambda tensors, config: tensors.update({LAYER + "bias": torch.full((64,), value)})

    load(changed(sources["gptq-4"], tmp_path / "zeros", bias(0.0)))
    with pytest.raises(ValueError, match="architecture does not know"):
        load(changed(sources["gptq-4"], tmp_path / "ones", bias(1.0)))


def test_the_configuration_may_have_a_file_of_its_own(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    for source, file in (("gptq-4", "quantize_config.json"), ("awq", "quant_config.json")):
        path = tmp_path / source
        shutil.copytree(sources[source], path)
        config = json.loads((path / "config.json").read_text())
        inner = config.pop("quantization_config")
        del inner["quant_method"]
        (path / "config.json").write_text(json.dumps(config))
        (path / file).write_text(json.dumps(inner))
        assert load(path).info["quantization"] == source.partition("-")[0]


def test_the_option_may_say_what_the_checkpoint_is(sources: dict[str, Path], plain: Path) -> None:
    assert load(sources["awq"], quantization="awq").info["quantization"] == "awq"
    with pytest.raises(ValueError, match=r"--quantization gptq says .* it is quantised with awq"):
        load(sources["awq"], quantization="gptq")
    with pytest.raises(ValueError, match="it is not quantised"):
        load(plain, quantization="compressed-tensors")
    with pytest.raises(ValueError, match=r"a second time: the checkpoint is AWQ, 4 bits"):
        load(sources["awq"], quantization="int4", dtype="bfloat16")


def test_memory_is_counted_by_what_is_kept(sources: dict[str, Path], plain: Path) -> None:
    def size(path: Path, **settings: Any) -> int:
        config = Config.of(model_path=str(path), device="cpu", dtype="bfloat16", **settings)
        return plan_of(config).storage.weight_bytes

    whole = size(plain)
    assert size(sources["fp8-channel"]) == whole
    assert size(sources["bnb-8"]) < 0.7 * whole
    assert size(sources["awq"]) < 0.5 * whole
    assert size(sources["awq"], cpu_kernels="torch") == whole


def test_published_weights_of_larger_models_are_kept(plain: Path) -> None:
    spec = plan_of(Config.of(model_path=str(plain), device="cpu")).spec
    cpu = torch.device("cpu")
    half: dict[str, Any] = {"name": "auto", "spec": spec}
    assert dtype_of(parameters=1 << 30, device=cpu, published=True, **half) == BFLOAT16
    assert dtype_of(parameters=1 << 20, device=cpu, published=True, **half) == FLOAT32


def test_float16_on_a_cpu_is_computed_in_float32(
    plain: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Native kernels keep their error bound in float32; torch's float16 did not. The log says
    so."""
    config = Config.of(model_path=str(plain), device="cpu", dtype="float16")
    with caplog.at_level("WARNING"):
        storage = plan_of(config).storage
    assert (storage.dtype, storage.kv_dtype) == (FLOAT32, FLOAT32)
    assert storage.torch_because == ""
    assert "computed in float32" in caplog.text
    assert dtype_of("float16", plan_of(config).spec, 1, torch.device("cuda")) == FLOAT16


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("torch.bfloat16", BFLOAT16), ("bfloat16", BFLOAT16), ("float64", FLOAT32), ("", FLOAT32)],
)
def test_a_dtype_that_none_computes_in_is_named(
    plain: Path, caplog: pytest.LogCaptureFixture, name: str, dtype: DType
) -> None:
    spec = replace(plan_of(Config.of(model_path=str(plain), device="cpu")).spec, dtype=name)
    with caplog.at_level("WARNING"):
        assert dtype_of("auto", spec, 1 << 30, torch.device("cpu")) == dtype
    assert ("float64" in caplog.text) == (name == "float64")


def fp8(x: Tensor) -> Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)


def int8(x: Tensor) -> Tensor:
    """One scale for each token and head."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return (x / scale).round() * scale


class Rounded(transformers.DynamicCache):
    """Keys and values as a pool of 8 bits gives them back."""

    def __init__(self, rounding: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rounding = rounding

    def update(self, keys: Tensor, values: Tensor, *rest: Any, **more: Any) -> Any:  # type: ignore[override]
        return super().update(self.rounding(keys), self.rounding(values), *rest, **more)


CACHES = [("native", fp8), ("native", int8), ("torch", fp8)]


@pytest.mark.parametrize(("kernels", "rounding"), CACHES)
def test_kv_caches_of_8_bits(
    plain: Path, kernels: str, rounding: Callable[[Tensor], Tensor]
) -> None:
    if kernels == "native" and not native.AVAILABLE:
        pytest.skip(native.WHY)
    dtype = rounding.__name__
    paged = Paged(str(plain), 4, 1, cpu_kernels=kernels, kv_cache_dtype=dtype)
    assert paged.worker.info["kv_bytes_per_token"] == 2 * 2 * 2 * (16 + 4 * (dtype == "int8"))
    sequence = Sequence([7 * n % 97 for n in range(40)])
    paged.advance([(sequence, 20)])
    for _ in range(20):
        paged.advance([(sequence, 1)])
    model = hf_models.make("LlamaForCausalLM", 5, **SIZES)
    with torch.no_grad():
        ids = torch.tensor([sequence.tokens])
        wanted = model(ids, past_key_values=Rounded(rounding), use_cache=True).logits[0]
    exact = hf_models.logits(model, sequence.tokens)
    # Native kernels round queries and weights too, where they multiply pairs of bfloat16.
    bound = 1e-3 if kernels == "torch" else 0.08
    assert (sequence.result - wanted).abs().max() < bound * wanted.abs().max()

    assert (wanted - exact).abs().max() > 0.02 * exact.abs().max(), "rounding that shows nothing"


def test_int8_keys_and_values_need_native_kernels(plain: Path) -> None:
    with pytest.raises(ValueError, match=r"needs native kernels: .* Use fp8 or auto"):
        load(plain, kv_cache_dtype="int8", cpu_kernels="torch")


def test_mxfp4(tmp_path: Path) -> None:
    """Two numbers a byte, the lower half first, times 2^(scale - 127)."""
    numbers = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (2, 3, 2, 16), dtype=torch.uint8, generator=generator)
    scales = torch.tensor([[[120, 127], [1, 254], [255, 0]]] * 2, dtype=torch.uint8)
    found = tensor(mxfp4.dequantise(blocks.numpy(), scales.numpy())).float()
    for e, i, j in ((0, 0, 0), (1, 0, 33), (0, 1, 5), (1, 1, 40), (0, 2, 63), (1, 2, 32)):
        code = int(blocks[e, i, j // 32, j % 32 // 2]) >> (4 * (j % 2)) & 15
        number = numbers[code & 7] * (-1 if code & 8 else 1)
        assert found[e, i, j] == number * 2.0 ** (int(scales[e, i, j // 32]) - 127)
    assert found[:, 2, :32].isnan().all()
    name = "model.layers.0.mlp.experts.gate_up_proj"
    save_file({f"{name}_blocks": blocks, f"{name}_scales": scales}, tmp_path / "model.safetensors")
    files = QuantisedFiles(SafetensorsCheckpoint(tmp_path))
    checkpoint = mxfp4.open_mxfp4(files, Fields({}, "config"))
    assert checkpoint.shapes == {name: (2, 64, 3)}
    assert torch.equal(tensor(checkpoint.read(name)).float().nan_to_num(), found.mT.nan_to_num())


def test_the_doctor_names_the_format(sources: dict[str, Path]) -> None:
    config = Config.of(model_path=str(sources["gptq-4"]), device="cpu", dtype="bfloat16")
    model = ModelChecks(config)
    steps = (model.directory, model.weights, model.memory)
    found = {finding.check: finding.found for step in steps for finding in step()}
    assert found["weights"].endswith("quantised: GPTQ, 4 bits, groups of 32 (14 matrices)")
    if native.AVAILABLE:
        assert "parameters in 4 bits and bfloat16" in found["memory"]
