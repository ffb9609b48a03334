"""ModelSpec: what a checkpoint's ``config.json`` says, checked, in our words."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srt.layers.activations import ACTIVATIONS
from srt.layers.rotary import VARIANTS, Rope

MAX_CONFIG_BYTES = 16 << 20
_LIMIT = 1 << 31


@dataclass(frozen=True)
class ModelSpec:
    """Shape of a decoder-only transformer.

    Attributes:
        windows: sliding window of each layer in tokens, 0 where a layer sees everything.
        context_length: longest sequence the model is meant for.
        dtype: name of the checkpoint's dtype, "" where it does not say.
        eos: ids that end a generation.
        qkv_bias, out_bias, mlp_bias, qk_norm: which optional weights exist.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    activation: str
    tied: bool
    rope: Rope
    windows: tuple[int, ...]
    context_length: int
    dtype: str
    eos: tuple[int, ...]
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


class Fields:
    """A JSON object with typed reads; every error names the file, the key and the value."""

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self.values, self.source = values, source

    def error(self, key: str, problem: str) -> ValueError:
        return ValueError(f"{self.source}: {key} is {self.values.get(key)!r}; {problem}")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def int(self, key: str, default: int | None = None, low: int = 1) -> int:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ValueError(f"{self.source}: {key} is missing.")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < _LIMIT:
            raise self.error(key, f"it must be an integer of at least {low}.")
        return value

    def float(self, key: str, default: float | None = None, low: float = 0.0) -> float:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ValueError(f"{self.source}: {key} is missing.")
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, "it must be a number.")
        if not math.isfinite(value) or value < low:
            raise self.error(key, f"it must be a finite number of at least {low:g}.")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "it must be true or false.")
        return value

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, "it must be a string.")
        return value

    def fields(self, key: str) -> Fields:
        value = self.values.get(key)
        if value is None:
            return Fields({}, f"{self.source}: {key}")
        if not isinstance(value, dict):
            raise self.error(key, "it must be an object.")
        return Fields(value, f"{self.source}: {key}")


def read_json(path: Path) -> Fields:
    """Raises ValueError, naming the file, where it is absent, too large or not a JSON object."""
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise ValueError(f"{path} has {size} bytes; at most {MAX_CONFIG_BYTES} are read.")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not hold a JSON object.")
    return Fields(value, str(path))


def read_config(directory: Path) -> tuple[Fields, str]:
    """The directory's ``config.json`` and the architecture that it names."""
    config = read_json(directory / "config.json")
    names = config.values.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise config.error("architectures", "it must be a list with one name.")
    if config.has("quantization_config"):
        raise ValueError(
            f"{config.source}: the checkpoint is quantized (quantization_config), which is not "
            f"supported; use the unquantized weights."
        )
    # What generate() would stop at wins over what the model was trained with.
    generation = directory / "generation_config.json"
    if generation.is_file():
        eos = read_json(generation).values.get("eos_token_id")
        if eos is not None:
            config.values["eos_token_id"] = eos
    return config, names[0]


def decoder_spec(
    config: Fields,
    architecture: str,
    *,
    windows: tuple[int, ...] | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> ModelSpec:
    """The part of a config that Llama and its kin share; the arguments are what differs.

    ``kv_heads`` and ``head_dim`` are defaults for configs that do not say. Raises ValueError.
    """
    hidden, heads = config.int("hidden_size"), config.int("num_attention_heads")
    layers, vocab = config.int("num_hidden_layers"), config.int("vocab_size")
    missing = heads if "num_key_value_heads" in config.values else kv_heads or heads
    kv = config.int("num_key_value_heads", missing)
    if not config.has("head_dim") and head_dim is None and hidden % heads:
        raise config.error("hidden_size", f"it must be a multiple of the {heads} attention heads.")
    dim = config.int("head_dim", head_dim or hidden // heads)
    if dim % 2:
        raise config.error("head_dim", f"{dim} is odd; rotary embeddings need pairs.")
    if heads % kv:
        raise config.error("num_key_value_heads", f"it must divide the {heads} attention heads.")
    activation = config.text("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise config.error("hidden_act", f"supported are {', '.join(ACTIVATIONS)}.")
    rope = _rope(config)
    return ModelSpec(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=config.int("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=dim,
        eps=config.float("rms_norm_eps", 1e-6),
        activation=activation,
        tied=config.flag("tie_word_embeddings"),
        rope=rope,
        windows=windows if windows is not None else (0,) * layers,
        context_length=rope.length,
        dtype=config.text("dtype") or config.text("torch_dtype"),
        eos=_eos(config, vocab),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
    )


def layer_windows(config: Fields) -> tuple[int, ...]:
    """Sliding windows by ``use_sliding_window`` and ``layer_types`` or ``max_window_layers``."""
    layers = config.int("num_hidden_layers")
    missing = 0 if "sliding_window" in config.values else 4096
    window = config.int("sliding_window", missing) if config.flag("use_sliding_window") else 0
    types = config.values.get("layer_types")
    if types is None:
        full = config.int("max_window_layers", 28, low=0)
        return tuple(window if i >= full else 0 for i in range(layers))
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != layers or any(t not in known for t in types):
        raise config.error("layer_types", f"it must list {layers} of {' and '.join(known)}.")
    if window == 0 and "sliding_attention" in types:
        raise config.error("layer_types", "it names sliding layers but use_sliding_window is off.")
    return tuple(window if t == "sliding_attention" else 0 for t in types)


def _rope(config: Fields) -> Rope:
    """Reads ``rope_parameters``, or ``rope_scaling`` and ``rope_theta`` beside it."""
    params = config.fields("rope_parameters")
    if not params.values:
        params = config.fields("rope_scaling")
    theta = params.float("rope_theta", config.float("rope_theta", 10000.0, low=1.0), low=1.0)
    kind = params.text("rope_type") or params.text("type", "default")
    if kind not in VARIANTS:
        raise ValueError(
            f"{params.source}: rope type {kind!r} is not supported; "
            f"supported are {', '.join(VARIANTS)}."
        )
    for fields in (params, config):
        if fields.float("partial_rotary_factor", 1.0) != 1.0:
            raise fields.error("partial_rotary_factor", "only 1 is supported for this model.")
    length = config.int("max_position_embeddings", 2048)
    original = config.int(
        "original_max_position_embeddings", params.int("original_max_position_embeddings", length)
    )
    factor = 1.0
    if kind != "default":
        scale = length / original if kind == "yarn" else None
        factor = params.float("factor", scale, low=1e-6)
    llama3 = kind == "llama3"
    rope = Rope(
        type=kind,
        theta=theta,
        factor=factor,
        max_length=length,
        original_length=original,
        low_freq_factor=params.float("low_freq_factor", None if llama3 else 1.0, low=1e-6),
        high_freq_factor=params.float("high_freq_factor", None if llama3 else 4.0, low=1e-6),
        beta_fast=params.float("beta_fast", 32.0) or 32.0,
        beta_slow=params.float("beta_slow", 1.0) or 1.0,
        attention_factor=(
            params.float("attention_factor") if params.has("attention_factor") else None
        ),
        mscale=params.float("mscale", 0.0),
        mscale_all_dim=params.float("mscale_all_dim", 0.0),
        truncate=params.flag("truncate", True),
    )
    if llama3 and rope.high_freq_factor <= rope.low_freq_factor:
        raise params.error("high_freq_factor", "it must be above low_freq_factor.")
    return rope


def _eos(config: Fields, vocab: int) -> tuple[int, ...]:
    value = config.values.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
            raise config.error("eos_token_id", f"ids must be integers in [0, {vocab}).")
    return tuple(dict.fromkeys(ids))
