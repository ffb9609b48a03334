"""ModelSpec: a model's shape, read from its ``config.json`` and checked."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from sglang.srt.attention.attention_protocol import KVShape
from sglang.srt.files.location import gguf_of
from sglang.srt.layers.activations import ACTIVATIONS, TEXT
from sglang.srt.layers.rotary import VARIANTS, Rope
from sglang.srt.models.config_fields import Fields, read_json
from sglang.srt.models.gguf.gguf_config import read_gguf

# max_position_embeddings of a config that does not say, by its model_type; 2048 of others.
LENGTHS = {
    "cohere": 8192, "cohere2": 8192, "deepseek_v3": 4096, "gemma2": 8192, "gemma3_text": 131072,
    "gpt_oss": 131072, "mistral": 131072, "mixtral": 131072, "olmoe": 4096, "phi3": 4096,
    "qwen2": 32768, "qwen2_moe": 32768, "qwen3": 32768, "qwen3_moe": 32768, "smollm3": 32768,
    "starcoder2": 4096,
}  # fmt: skip


@dataclass(frozen=True)
class ModelSpec:
    """Shape of a decoder-only transformer.

    Attributes:
        windows: sliding window of each layer in tokens, 0 where a layer sees everything.
        local_rope: of the layers with a window, where it is not ``rope``.
        context_length: longest sequence the model is meant for.
        dtype: name of the checkpoint's dtype, "" where it does not say.
        eos: ids that end a generation.
        qkv_bias, out_bias, mlp_bias, qk_norm: which optional weights exist.
        purpose: "generate", "embed" (there is no head) or "classify".
        labels: of a classifier, by number.
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
    local_rope: Rope | None = None
    purpose: str = "generate"
    labels: tuple[str, ...] = ()

    @property
    def outputs(self) -> int:
        """Rows of the head."""
        return len(self.labels) or self.vocab_size

    @property
    def kv(self) -> KVShape:
        """Shape of a token in each layer's cache."""
        return KVShape(self.num_kv_heads, self.head_dim, self.head_dim)

    @property
    def sinks(self) -> bool:
        """Whether attention has sinks."""
        return False


def read_config(directory: Path) -> tuple[Fields, str]:
    """The directory's ``config.json``, or the one made from its GGUF file, and its architecture.
    Raises ValueError."""
    if file := gguf_of(directory):
        return read_gguf(file)
    config = read_json(directory / "config.json")
    names = config.values.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise config.error("architectures", "it must be a list with one name.")
    # The end tokens of generation win over those that the model was trained with.
    generation = directory / "generation_config.json"
    if generation.is_file():
        eos = read_json(generation).values.get("eos_token_id")
        if eos is not None:
            config.values["eos_token_id"] = eos
    return config, names[0]


def json_whitespace(directory: Path) -> str | None:
    """White space that the model writes between tokens of JSON: ``json_whitespace_pattern``
    of ``generation_config.json``; None where it does not say. Raises ValueError."""
    path, key = directory / "generation_config.json", "json_whitespace_pattern"
    if not path.is_file():
        return None
    found = read_json(path)
    return found.text(key) if found.has(key) else None


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
    partial_rotary: bool = False,
) -> ModelSpec:
    """The part of a config that Llama and its kin share; the arguments are what differs.

    ``kv_heads`` and ``head_dim`` are defaults for configs that do not say; ``partial_rotary``: the
    family knows ``partial_rotary_factor``. Raises ValueError.
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
    activation = read_activation(config, "hidden_act", "silu", TEXT)
    rope = read_rope(config, partial_rotary)
    check_turned(config, rope, dim)
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


def read_activation(
    config: Fields, key: str, missing: str, known: Collection[str] = ACTIVATIONS
) -> str:
    name = config.text(key, missing)
    if name not in known:
        raise config.error(key, f"supported are {', '.join(known)}.")
    return name


def layer_windows(config: Fields) -> tuple[int, ...]:
    """Sliding windows by ``use_sliding_window`` and ``layer_types`` or ``max_window_layers``."""
    layers = config.int("num_hidden_layers")
    missing = 0 if "sliding_window" in config.values else 4096
    window = config.int("sliding_window", missing) if config.flag("use_sliding_window") else 0
    full = config.int("max_window_layers", 28, low=0)
    sliding = sliding_layers(config, layers, lambda i: window > 0 and i >= full)
    if window == 0 and any(sliding):
        raise config.error("layer_types", "it names sliding layers but use_sliding_window is off.")
    return tuple(window if slides else 0 for slides in sliding)


def sliding_layers(config: Fields, layers: int, missing: Callable[[int], bool]) -> tuple[bool, ...]:
    """Whether each layer has a sliding window: ``layer_types``, or ``missing`` without them."""
    types = config.values.get("layer_types")
    if types is None:
        return tuple(missing(i) for i in range(layers))
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != layers or any(t not in known for t in types):
        raise config.error("layer_types", f"it must list {layers} of {' and '.join(known)}.")
    return tuple(t == "sliding_attention" for t in types)


S = TypeVar("S", bound=ModelSpec)


def extended(spec: ModelSpec, family: type[S], **more: Any) -> S:
    """``spec`` as a family's own class, which has more fields."""
    return family(**{f.name: getattr(spec, f.name) for f in fields(spec)}, **more)


def _rope_settings(config: Fields) -> Fields:
    """``rope_parameters``, or ``rope_scaling`` of older configs. Raises ValueError where the latter
    is there too and says something else: transformers would follow it, and forget the theta."""
    params, older = config.fields("rope_parameters"), config.fields("rope_scaling")
    if not params.values:
        return older
    for key, value in older.values.items():
        name = "rope_type" if key == "type" else key
        said = params.values.get(name, params.values.get(key))
        same = value == said or (name == "rope_type" and {value, said} <= {"mrope", "default"})
        if value is not None and not same:
            raise ValueError(
                f"{config.source}: rope_scaling has {key} {value!r} and rope_parameters has "
                f"{said!r}; put what is meant into rope_parameters and remove rope_scaling."
            )
    return params


def read_rope(config: Fields, partial: bool = False) -> Rope:
    """Reads ``rope_parameters``, or ``rope_scaling`` and ``rope_theta`` beside it."""
    params = _rope_settings(config)
    theta = params.float("rope_theta", config.float("rope_theta", 10000.0, low=1.0), low=1.0)
    kind = params.text("rope_type") or params.text("type", "default")
    if params.has("long_factor"):
        kind = "longrope"  # checkpoints older than the name say "su" or "yarn"
    if kind not in VARIANTS:
        raise ValueError(
            f"{params.source}: rope type {kind!r} is not supported; "
            f"supported are {', '.join(VARIANTS)}."
        )
    if theta == 1.0:
        holder = params if params.has("rope_theta") else config
        raise holder.error("rope_theta", "it must be above 1.")
    holder = params if params.has("partial_rotary_factor") else config
    turned = holder.float("partial_rotary_factor", 1.0)
    if turned != 1.0 and not (partial and 0 < turned < 1):
        known = "it must be above 0 and at most 1" if partial else "only 1 is supported"
        raise holder.error("partial_rotary_factor", f"{known} for this model.")
    length = config.int("max_position_embeddings", LENGTHS.get(config.text("model_type"), 2048))
    original = config.int(
        "original_max_position_embeddings", params.int("original_max_position_embeddings", length)
    )
    factor = 1.0
    if kind != "default":
        scale = length / original if kind in ("yarn", "longrope") else None
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
        short_factor=params.floats("short_factor"),
        long_factor=params.floats("long_factor"),
        partial=turned,
    )
    if llama3 and rope.high_freq_factor <= rope.low_freq_factor:
        raise params.error("high_freq_factor", "it must be above low_freq_factor.")
    if kind == "longrope" and original < 2:
        raise config.error("original_max_position_embeddings", "longrope needs 2 at least.")
    return rope


def check_turned(config: Fields, rope: Rope, head_dim: int) -> None:
    """Raise ValueError unless the embedding fits heads of ``head_dim`` dimensions."""
    turned = rope.turned(head_dim)
    if turned < 2 or turned % 2:
        raise ValueError(
            f"{config.source}: partial_rotary_factor {rope.partial:g} turns {turned} of a head's "
            f"{head_dim} dimensions; rotary embeddings need pairs."
        )
    if rope.type != "longrope":
        return
    for key, factors in (("short_factor", rope.short_factor), ("long_factor", rope.long_factor)):
        if len(factors) != turned // 2 or not all(factors):
            raise ValueError(
                f"{config.source}: {key} of the rotary embedding has {len(factors)} numbers; "
                f"{turned // 2} above 0 are needed, one for each pair that turns."
            )


def _eos(config: Fields, vocab: int) -> tuple[int, ...]:
    value = config.values.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
            raise config.error("eos_token_id", f"ids must be integers in [0, {vocab}).")
    return tuple(dict.fromkeys(ids))
