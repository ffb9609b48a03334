"""GGUF files made of small models, with the library of the format's authors: names and blocks are
theirs, what llama.cpp's converters change on the way is done here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from helpers.tokenizer_files import add_tokenizer

Q: Any = gguf.GGMLQuantizationType
F32 = Q.F32
QUANTISABLE = (Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1)  # by the library


def blocks(rows: int, columns: int, kind: Any, seed: int) -> np.ndarray[Any, Any]:
    """Random blocks whose values are of a weight's size: [rows, bytes]."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    r = np.random.default_rng(seed)
    raw = r.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
    scales = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,),
              "IQ4_NL": (0,), "Q4_1": (0, 2), "Q5_1": (0, 2)}.get(kind.name, (0,))  # fmt: skip
    tiny = {"Q8_0": 3e-3, "IQ4_NL": 3e-3, "Q6_K": 1e-4, "Q4_K": 5e-4, "Q5_K": 2e-4, "Q3_K": 2e-3,
            "Q2_K": 5e-3}.get(kind.name, 3e-2)  # fmt: skip
    for at in scales:
        d = (r.random(len(raw)) * 0.5 + 0.75) * tiny
        raw[:, at : at + 2] = d.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return raw.reshape(rows, -1)


def pairs(heads: int) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Rows of each head: halves that turn together -> pairs."""

    def change(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        half = x.shape[0] // heads // 2
        return x.reshape(heads, 2, half, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)

    return change


def write_model(
    path: Path,
    model: Any,
    architecture: str,
    kind: Any = F32,
    facts: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    tensors: dict[str, np.ndarray[Any, Any]] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
) -> Path:
    """A model of transformers as a file. Of a ``kind`` that the library cannot quantise to the
    blocks are random; what they mean is put into ``model`` then, as is what rounding leaves."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    _sizes(writer, config)
    facts(writer)
    for name, value in (tensors or {}).items():
        writer.add_tensor(name, value)
    add_tokenizer(writer, tokenizer or {})
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    state = dict(model.state_dict())
    for number, (name, tensor) in enumerate(state.items()):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for new, old, array in _converted(name, tensor, config, names, architecture):
            quantised = array.ndim > 1 and ".ffn_gate_inp" not in new and kind != F32
            if not quantised:
                writer.add_tensor(new, np.ascontiguousarray(array, dtype=np.float32))
                continue
            flat = np.ascontiguousarray(array.reshape(-1, array.shape[-1]))
            if kind in QUANTISABLE or kind in (Q.F16, Q.BF16):
                raw = gguf.quants.quantize(flat, kind)
            else:
                raw = blocks(len(flat), flat.shape[1], kind, number)
            writer.add_tensor(new, raw.reshape(*array.shape[:-1], -1), raw_dtype=kind)
            meant = gguf.quants.dequantize(raw, kind).reshape(array.shape)
            old(torch.from_numpy(meant.astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    writer.add_feed_forward_length(inner)
    heads = config.num_attention_heads
    writer.add_head_count(heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", heads))
    if dim := getattr(config, "head_dim", None):
        writer.add_key_length(dim)
        writer.add_value_length(dim)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        eps = getattr(config, "norm_epsilon", None) or config.layer_norm_epsilon
        writer.add_layer_norm_eps(eps)
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"])


def _converted(name: str, tensor: torch.Tensor, config: Any, names: Any, architecture: str) -> Any:
    """(name, a function that takes what the stored values mean, array) of what a tensor becomes."""
    experts = name.endswith(("experts.gate_up_proj", "experts.down_proj"))
    full = name + ".weight" if experts else name
    change: Callable[[Any], Any] = lambda x: x  # noqa: E731
    undo = change
    if architecture in ("llama", "smollm3", "granite"):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        if ".q_proj." in name or ".k_proj." in name:
            change = pairs(heads)
            undo = _undone(change, tensor.shape)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        change, undo = lambda x: x + 1, lambda x: x - 1
    if architecture == "gpt2" and tensor.ndim == 2 and ".h." in name:
        change = undo = lambda x: x.T

    def put(value: torch.Tensor) -> None:
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(undo(value.numpy()))))

    if name.endswith("experts.gate_up_proj"):  # transformers 5: [experts, 2 inner, width]
        layer = name.split(".")[2]
        gate, up = tensor.chunk(2, dim=1)
        for part, stem in ((gate, "gate"), (up, "up")):
            yield f"blk.{layer}.ffn_{stem}_exps.weight", part.copy_, part.numpy()
        return
    if name.endswith("experts.down_proj"):
        layer = name.split(".")[2]
        yield f"blk.{layer}.ffn_down_exps.weight", tensor.copy_, tensor.numpy()
        return
    new = names.get_name(full, try_suffixes=(".weight", ".bias"))
    assert new is not None, full
    yield new, put, change(tensor.numpy())


def _undone(change: Callable[[Any], Any], shape: Any) -> Callable[[Any], Any]:
    """The inverse of a permutation of rows."""
    order = change(np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))).reshape(-1)
    return lambda x: x[np.argsort(order)]
