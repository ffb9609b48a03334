"""A GGUF file's metadata, as the ``config.json`` that it was made of."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang.srt.files.gguf import Gguf, Tensor, endings, read_shards
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.gguf.families import FAMILIES, MIXTRAL_FAMILY, Family, Header
from sglang.srt.models.gguf.quants import FLOATS
from sglang.srt.numeric.host_arrays import BFLOAT16

MAX_FACTORS = 1 << 12  # frequencies of a rotary embedding


class GgufFields(Fields):
    """The config, with the files and the family that it was read from."""

    def __init__(
        self, values: dict[str, Any], path: Path, files: list[Gguf], family: Family
    ) -> None:
        super().__init__(values, str(path))
        self.files, self.family = files, family


def read_gguf(path: Path) -> tuple[GgufFields, str]:
    """The config of a file (of the first of several), and its architecture. Raises ValueError."""
    files = read_shards(path)
    first = files[0]
    name = first.values.get("general.architecture")
    if name not in FAMILIES:
        raise first.error("general.architecture", f"supported are {', '.join(FAMILIES)}.")
    prefix = f"{name}."
    facts = Fields(
        {k.removeprefix(prefix): v for k, v in first.values.items() if k.startswith(prefix)},
        f"{path}: {name}",
    )
    tensors = {key: tensor for file in files for key, tensor in file.tensors.items()}
    header = Header(facts, tensors, lambda key: _numbers(tensors, key))
    family = FAMILIES[str(name)]
    if name == "llama" and facts.has("expert_count"):
        family = MIXTRAL_FAMILY
    values = decoder(header, first) | family.settings(header)
    return GgufFields(values, path, files, family), family.architecture


def decoder(header: Header, file: Gguf) -> dict[str, Any]:
    """Values that all families have, by the names of Llama's config."""
    facts, tensors = header.facts, header.tensors
    table = tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise ValueError(f"{file.path} has no table of embeddings, token_embd.weight.")
    heads, width = facts.int("attention.head_count"), facts.int("embedding_length")
    dim = facts.int("attention.key_length", max(width // heads, 1))
    if facts.int("attention.value_length", dim) != dim:
        raise facts.error("attention.value_length", f"keys have {dim}; they must be the same.")
    values: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": facts.int("block_count"),
        "intermediate_size": _one(facts, "feed_forward_length", width),
        "num_attention_heads": heads,
        "num_key_value_heads": _one(facts, "attention.head_count_kv", heads),
        "head_dim": dim,
        "rms_norm_eps": facts.float(
            "attention.layer_norm_rms_epsilon", facts.float("attention.layer_norm_epsilon", 1e-6)
        ),
        "max_position_embeddings": facts.int("context_length"),
        "vocab_size": table.shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "eos_token_id": list(endings(file)),
        "dtype": _dtype(tensors),
        "rope_parameters": rope(header, dim),
    }
    turned = facts.int("rope.dimension_count", dim)
    if turned != dim:
        values["partial_rotary_factor"] = turned / dim
    return values


def _one(facts: Fields, key: str, missing: int) -> int:
    if facts.has(key) and not isinstance(facts.values[key], int):
        raise facts.error(key, "one number for all layers is supported.")
    return facts.int(key, missing)


def rope(header: Header, dim: int) -> dict[str, Any]:
    """The rotary embedding. Llama 3's scaling is not in the metadata but in a tensor, which has
    what each pair's frequency is divided by."""
    facts = header.facts
    theta = {"rope_theta": facts.float("rope.freq_base", 10000.0, low=1.0)}
    length = facts.int("context_length")
    original = facts.int("rope.scaling.original_context_length", length)
    if factors := header.numbers("rope_freqs.weight"):
        return {
            **theta, "rope_type": "longrope", "factor": 1.0, "attention_factor": 1.0,
            "short_factor": factors, "long_factor": factors,
        }  # fmt: skip
    if short := header.numbers("rope_factors_short.weight"):
        return {
            **theta, "rope_type": "longrope", "short_factor": short,
            "long_factor": header.numbers("rope_factors_long.weight"),
            "factor": max(length / original, 1.0), "original_max_position_embeddings": original,
            "attention_factor": facts.float("rope.scaling.attn_factor", 1.0),
        }  # fmt: skip
    kind = facts.text("rope.scaling.type", "none")
    if kind == "none":
        return {**theta, "rope_type": "default"}
    factor = facts.float("rope.scaling.factor", 1.0, low=1e-6)
    found = {**theta, "rope_type": kind, "factor": factor}
    if kind == "yarn":
        found["original_max_position_embeddings"] = original
        found["beta_fast"] = facts.float("rope.scaling.yarn_beta_fast", 32.0)
        found["beta_slow"] = facts.float("rope.scaling.yarn_beta_slow", 1.0)
        if facts.has("rope.scaling.attn_factor"):
            more = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
            found["attention_factor"] = facts.float("rope.scaling.attn_factor") * more
    return found


def _numbers(tensors: Mapping[str, Tensor], key: str) -> list[float]:
    """A short float32 tensor's values, none where there is no such tensor."""
    tensor = tensors.get(key)
    if tensor is None:
        return []
    size = tensor.end - tensor.begin
    if tensor.kind.name != "F32" or size > MAX_FACTORS * 4:
        raise ValueError(f"{tensor.file}: {key} must have at most {MAX_FACTORS} values of F32.")
    with tensor.file.open("rb") as file:
        file.seek(tensor.begin)
        raw = file.read(size)
    if len(raw) != size:
        raise ValueError(f"{tensor.file} is shorter than it was.")
    return list(struct.unpack(f"<{size // 4}f", raw))


def _dtype(tensors: Mapping[str, Tensor]) -> str:
    """The dtype that most weights have; of quantised ones bfloat16, which holds more than they."""
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        if len(tensor.shape) > 1:
            sizes[tensor.kind.name] += math.prod(tensor.shape)
    most = max(sizes, key=lambda kind: sizes[kind], default="F32")
    found: str = FLOATS.get(most, BFLOAT16).name
    return found
