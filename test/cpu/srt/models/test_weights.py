"""Reading checkpoints: sharded, cast, dummy, and hostile ones."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hf_models import make, save
from helpers.tiny_model import write_config
from safetensors.torch import load_file, save_file
from sglang.srt.config import Config
from sglang.srt.files.location import TOKENIZER_FILES, locate
from sglang.srt.layers.weight import Place, Slot
from sglang.srt.models import weights
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.model_spec import read_config
from sglang.srt.models.safetensors import INDEX, SafetensorsCheckpoint, read_checkpoint, read_header
from sglang.srt.worker.model_worker import ModelWorker

CPU = Place(torch.device("cpu"), torch.float32)


def checkpoint(path: Path, **options: Any) -> dict[str, torch.Tensor]:
    """A small Llama on disk, and its tensors."""
    model = make("LlamaForCausalLM", num_hidden_layers=1)
    save(model, path, **options)
    return dict(model.state_dict())


def read(path: Path) -> LlamaForCausalLM:
    fields, architecture = read_config(path)
    spec = LlamaForCausalLM.read(fields, architecture)
    model = LlamaForCausalLM(spec, CPU, 8)
    found = SafetensorsCheckpoint(path)
    weights.match(model.slots(), found, model.ignores)
    weights.load(model.slots(), found, show=False)
    return model


def write_raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "4KB"}], ids=["one", "sharded"])
def test_every_tensor_arrives(options: dict[str, Any], tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path, **options)
    assert (tmp_path / INDEX).exists() == bool(options)
    slots = read(tmp_path).slots()
    assert slots.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(slots[name].target, tensor)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_are_cast(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path)
    cast = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    save_file(cast, tmp_path / "model.safetensors")
    for name, slot in read(tmp_path).slots().items():
        assert torch.equal(slot.target, cast[name].float())


def test_unaligned_data_is_read(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * ((3 - len(header)) % 8)  # the data begins at an odd byte
    path = write_raw(tmp_path / "model.safetensors", header, struct.pack("<2f", 1.5, -2.0))
    entry = read_header(path)["a"]
    assert entry.begin % 4
    target = torch.zeros(2)
    slots = {"a": weights_slot(target)}
    weights.load(slots, SafetensorsCheckpoint(tmp_path), show=False)
    assert target.tolist() == [1.5, -2.0]


def weights_slot(target: torch.Tensor) -> Any:
    return Slot(target, tuple(target.shape))


def test_dummy_weights_are_seeded_and_alive(tmp_path: Path) -> None:
    path = write_config(tmp_path, attention_bias=True)
    fields, name = read_config(Path(path))
    spec = LlamaForCausalLM.read(fields, name)
    models = [LlamaForCausalLM(spec, CPU, 8) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2)):
        weights.randomise(model.slots(), seed, show=False)
    for slot, again, other in zip(*(model.slots().values() for model in models)):
        assert torch.equal(slot.target, again.target)
        assert not torch.equal(slot.target, other.target)
        assert slot.target.std() > 0.005
    matrix = models[0].slots()["model.layers.0.mlp.down_proj.weight"]
    assert matrix.target.std() == pytest.approx(matrix.shape[1] ** -0.5, rel=0.1)


A = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
HOSTILE: dict[str, tuple[Any, bytes, int | None, str]] = {
    "empty": (b"", b"", None, "not valid JSON"),
    "header beyond the file": ({}, b"", 1 << 40, "declares a header"),
    "no JSON": (b"{nope", b"", None, "not valid JSON"),
    "deep JSON": (b"[" * 100000, b"", None, "not valid JSON"),
    "a list": ([], b"", None, "not a JSON object"),
    "twice": (b'{"a": {}, "a": {}}', b"", None, "occurs twice"),
    "no object": ({"a": 3}, b"", None, "not described by an object"),
    "unknown dtype": ({"a": {**A, "dtype": "F1"}}, bytes(16), None, "unknown dtype"),
    "negative shape": ({"a": {**A, "shape": [-2, -2]}}, bytes(16), None, "invalid shape"),
    "huge shape": ({"a": {**A, "shape": [1 << 62, 1 << 62]}}, bytes(16), None, "needs"),
    "true shape": ({"a": {**A, "shape": [True, 4]}}, bytes(16), None, "invalid shape"),
    "short data": ({"a": A}, bytes(12), None, "has 12 bytes of data"),
    "backward offsets": ({"a": {**A, "data_offsets": [16, 0]}}, bytes(16), None, "data_offsets"),
    "float offsets": ({"a": {**A, "data_offsets": [0, 16.0]}}, bytes(16), None, "invalid data"),
    "wrong size": ({"a": {**A, "data_offsets": [0, 8]}}, bytes(16), None, "needs 16 bytes"),
    "overlap": ({"a": A, "b": A}, bytes(16), None, "neither overlap"),
    "gap": ({"a": {**A, "data_offsets": [4, 20]}}, bytes(20), None, "nor leave gaps"),
    "trailing": ({"a": A}, bytes(20), None, "its header describes"),
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_lying_headers_are_refused(case: str, tmp_path: Path) -> None:
    header, data, length, message = HOSTILE[case]
    path = write_raw(tmp_path / "model.safetensors", header, data, length)
    with pytest.raises(ValueError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


def test_a_file_too_short_for_a_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    with pytest.raises(ValueError, match="has 3 bytes"):
        read_checkpoint(tmp_path)


def edit_index(path: Path, change: Any) -> None:
    index = json.loads((path / INDEX).read_text())
    change(index["weight_map"])
    (path / INDEX).write_text(json.dumps(index))


def test_shards_and_index_must_agree(tmp_path: Path) -> None:
    checkpoint(tmp_path, max_shard_size="4KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    original = (tmp_path / INDEX).read_text()
    norm = "model.norm.weight"

    edit_index(tmp_path, lambda m: m.update({"lm_head.weight": files[-1].name + "x"}))
    with pytest.raises(ValueError, match="is missing"):
        read(tmp_path)
    (tmp_path / INDEX).write_text(original)
    edit_index(tmp_path, lambda m: m.pop(norm))
    with pytest.raises(ValueError, match=r"model\.norm\.weight is in None"):
        read(tmp_path)
    (tmp_path / INDEX).write_text(original)
    edit_index(tmp_path, lambda m: m.update({"ghost": m[norm]}))
    with pytest.raises(ValueError, match=r"ghost is in model-.*; it is not"):
        read(tmp_path)
    (tmp_path / INDEX).write_text(original)
    edit_index(tmp_path, lambda m: m.update({norm: 3}))
    with pytest.raises(ValueError, match="not a string"):
        read(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(ValueError, match="weight_map is missing"):
        read(tmp_path)
    (tmp_path / INDEX).write_text(original)
    files[0].unlink()
    with pytest.raises(ValueError, match=f"{files[0].name} is missing"):
        read(tmp_path)


@pytest.mark.parametrize("how", ["dots", "absolute", "link", "linked directory"])
def test_no_path_leaves_the_directory(how: str, tmp_path: Path) -> None:
    model, outside = tmp_path / "model", tmp_path / "outside"
    outside.mkdir()
    checkpoint(model, max_shard_size="4KB")
    shard = sorted(model.glob("*.safetensors"))[0]
    target = outside / shard.name
    shard.rename(target)
    name = {
        "dots": f"../outside/{shard.name}", "absolute": str(target), "link": shard.name,
        "linked directory": f"deep/{shard.name}",
    }[how]  # fmt: skip
    if how == "link":
        shard.symlink_to(target)
    if how == "linked directory":
        (model / "deep").symlink_to(outside)
    edit_index(model, lambda m: m.update({k: name for k, v in list(m.items()) if v == shard.name}))
    with pytest.raises(ValueError, match="outside the model directory"):
        read(model)


def test_the_hub_cache_s_links_are_followed(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0f"
    checkpoint(snapshot)
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    (snapshot / "model.safetensors").rename(blobs / "abc")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    assert read(snapshot)


def test_tensors_must_be_those_of_the_model(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({k: v for k, v in tensors.items() if "up_proj" not in k}, path)
    with pytest.raises(ValueError, match=r"lacks tensor model\.layers\.0\.mlp\.up_proj\.weight"):
        read(tmp_path)
    save_file({**tensors, "model.layers.0.mlp.up_proj.bias": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"has tensor model\.layers\.0\.mlp\.up_proj\.bias"):
        read(tmp_path)
    # Buffers that old releases saved are no weights.
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}, path)
    read(tmp_path)
    save_file({**tensors, "model.norm.weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"has shape \[3\]; config\.json asks for \[32\]"):
        read(tmp_path)
    save_file({**tensors, "model.norm.weight": torch.zeros(32, dtype=torch.int8)}, path)
    with pytest.raises(ValueError, match="has dtype I8"):
        read(tmp_path)


def test_a_lying_config_allocates_nothing(tmp_path: Path) -> None:
    """A config that asks for petabytes is refused by the file's header, not by the allocator."""
    checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["hidden_size"] = 1 << 30
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="asks for"):
        ModelWorker(Config.of(model_path=str(tmp_path), device="cpu"))


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["LlamaForCasualLM"]}, "nearest name is LlamaForCausalLM"),
    ({"architectures": None}, "a list with one name"),
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"hidden_size": "32"}, "hidden_size is '32'"),
    ({"num_attention_heads": 0}, "at least 1"),
    ({"num_key_value_heads": 3}, "must divide the 4 attention heads"),
    ({"hidden_act": "swoosh"}, "supported are silu"),
    ({"rms_norm_eps": float("nan")}, "finite"),
    ({"rope_scaling": {"type": "spiral"}}, "rope type 'spiral' is not supported"),
    ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
    (
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "yarn"}},
        "rope_scaling has type 'yarn' and rope_parameters has 'default'",
    ),
    (
        {"rope_parameters": {"rope_type": "linear", "factor": 2}, "rope_scaling": {"factor": 4}},
        "rope_scaling has factor 4 and rope_parameters has 2",
    ),
    ({"max_position_embeddings": 1 << 40}, "it must be at most 2147483647"),
    ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
    ({"partial_rotary_factor": 0.5}, "only 1 is supported"),
    ({"eos_token_id": [2, 160]}, r"integers in \[0, 160\)"),
    ({"tie_word_embeddings": "yes"}, "true or false"),
]


@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_configs_are_checked(number: int, tmp_path: Path) -> None:
    changes, message = CONFIGS[number]
    path = write_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        ModelWorker(Config.of(model_path=path, load_format="dummy", device="cpu"))


def test_eos_comes_from_the_generation_config_first(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 7, 5]}')
    fields, architecture = read_config(tmp_path)
    assert LlamaForCausalLM.read(fields, architecture).eos == (5, 7)


def test_where_models_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate(str(tmp_path)) == tmp_path
    assert locate("").name == "sglang-tiny"
    assert locate("sglang-tiny") == locate("")
    with pytest.raises(ValueError, match="no hub id"):
        locate("/nowhere/at/all")
    (tmp_path / "f").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        locate(str(tmp_path / "f"))
    with pytest.raises(ValueError, match="has no safetensors file"):
        read_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_text("")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin must be converted"):
        read_checkpoint(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="Without a network"):
        locate("nobody-at-all/no-model")


@pytest.mark.parametrize("dim", [0, 1])
def test_a_rank_reads_only_its_part(dim: int, tmp_path: Path) -> None:
    """Counted in pages of the mapping that have come in, for slices of rows and of columns."""
    weight = torch.randn(4, 1 << 21)
    save_file({"w": weight}, tmp_path / "model.safetensors")
    found = SafetensorsCheckpoint(tmp_path)
    whole, ranks = tuple(weight.shape), 4
    part = weight.shape[dim] // ranks
    target = torch.zeros(weight.narrow(dim, 0, part).shape)
    Slot(target, whole, dim, 2 * part).load(found.read("w"))
    assert torch.equal(target, weight.narrow(dim, 2 * part, part))
    share = resident(tmp_path / "model.safetensors") / weight.nbytes
    assert 0.25 <= share < 0.6  # the kernel brings a page's neighbours along
    found.forget("w")
    assert resident(tmp_path / "model.safetensors") < 0.05 * weight.nbytes


def resident(path: Path) -> int:
    """Bytes of this process's mappings of a file that are in memory."""
    total, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            here = line.endswith(str(path))
        elif here and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_what_is_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the needed files of a repository: weights, a tokenizer, or one GGUF model and its
    shards."""
    asked = []

    def fetch(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "m-00001-of-00002.gguf").write_bytes(b"GGUF")
    assert locate("a/b", "v1") == tmp_path
    assert locate("a/b", "", TOKENIZER_FILES) == tmp_path
    assert locate("a/b/q/m-00001-of-00002.gguf") == tmp_path / "q" / "m-00001-of-00002.gguf"
    assert asked == [
        ("a/b", "v1", ["*.json", "*.safetensors"]),
        ("a/b", None, list(TOKENIZER_FILES)),
        ("a/b", None, ["q/m-*-of-00002.gguf"]),
    ]
    with pytest.raises(ValueError, match="is missing"):
        locate("a/b/other.gguf")
    with pytest.raises(ValueError, match="outside the model directory"):
        locate("a/b/../../x.gguf")


def test_progress_without_a_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started with standard error closed has None there."""
    monkeypatch.setattr("sys.stderr", None)
    with weights.progress(1, "reading", show=True) as bar:
        bar.update(1)
