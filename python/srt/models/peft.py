"""Adapters in PEFT's layout: ``adapter_config.json`` beside ``adapter_model.safetensors``.

A module ``M`` of the model has ``base_model.model.M.lora_A.weight`` [rank, inputs] and
``base_model.model.M.lora_B.weight`` [outputs, rank]; its weight becomes W + s B A with s = alpha /
rank, or alpha / sqrt(rank) (Kalajdzievski 2023, "rank stabilized"). The files may come from
anywhere: every size is checked against the model before a byte is read, and what would make the sum
another one is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sglang.srt.files.location import inside
from sglang.srt.layers.linear import ColumnLinear, RowLinear
from sglang.srt.layers.lora import Pair, Weights
from sglang.srt.layers.weight import Slot
from sglang.srt.models.config_fields import Fields, read_json
from sglang.srt.models.decoder_model import Block
from sglang.srt.models.safetensors import DTYPES, SafetensorsCheckpoint
from sglang.srt.numeric.host_arrays import Array, DType, address, storage_key

CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
# Unsupported keys, which must be unset, and the reason.
_REFUSED = {
    "use_dora": "DoRA scales whole columns of the merged weight",
    "modules_to_save": "whole modules beside the adapter are not loaded",
    "trainable_token_indices": "changed embeddings are not loaded",
    "target_parameters": "parameters that are no modules, such as experts, cannot be adapted",
    "layer_replication": "the model's layers are not repeated",
    "lora_bias": "biases of adapters are not added",
    "alora_invocation_tokens": "an adapter applies to all tokens of its request",
    "use_qalora": "inputs are not pooled",
    "arrow_config": "an adapter is chosen by the request, not by the router",
}
_PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
_NAME = re.compile(r"\^?[\w.\\-]+\$?")


@dataclass(frozen=True)
class Site:
    """A module that adapters may change: a part of the product ``number`` of the model.

    Attributes:
        shape: outputs and inputs of the whole module.
        first: of the layer's outputs, the one that is the module's first.
        start, size: which of the module's outputs this rank has; of a ``RowLinear`` which inputs.
        arrange: orders the rows of B, whatever their length, as the layer has them; of a
            ``transposed`` module it takes the transpose of B.
    """

    name: str
    number: int
    layer: ColumnLinear | RowLinear
    shape: tuple[int, int]
    first: int
    start: int
    size: int
    arrange: Callable[[Array], Array] | None
    transposed: bool

    def pair(self, a: Array, b: Array, scale: float, dtype: DType) -> Pair:
        """This rank's part of A and of s B."""
        b = b.astype(np.float32) * np.float32(scale)
        own = slice(self.start, self.start + self.size)
        if isinstance(self.layer, RowLinear):
            a = a[:, own]
        else:
            if self.arrange is not None:
                b = self.arrange(b.T if self.transposed else b)
            b = b[own]
        return Pair(a.astype(dtype, order="C"), b.T.astype(dtype, order="C"), self.first)


def _site_of(name: str, number: int, layer: ColumnLinear | RowLinear, slot: Slot) -> Site:
    fused = layer.fused if isinstance(layer, ColumnLinear) else None
    transposed = layer.transposed if isinstance(layer, RowLinear) else bool(
        fused and fused.transposed
    )  # fmt: skip
    outputs, inputs = slot.shape[::-1] if transposed else slot.shape
    target = slot.target
    first = (address(target) - address(layer.weight)) // target.dtype.itemsize
    return Site(
        name, number, layer, (outputs, inputs), first // layer.weight.shape[1],
        slot.start, target.shape[slot.dim], slot.adapt, transposed,
    )  # fmt: skip


def sites_of(blocks: Sequence[tuple[str, Block]]) -> dict[str, Site]:
    """The modules of a model's blocks, given with the prefixes of their names, that adapters may
    change. To be called while the weights are where the slots say, before they are packed."""
    found: dict[str, Site] = {}
    numbers: dict[int, int] = {}
    for prefix, block in blocks:
        layers = {
            storage_key(layer.weight): layer
            for layer in block.stored()
            if isinstance(layer, ColumnLinear | RowLinear) and not layer.inside
        }
        for name, slot in block.slots(prefix).items():
            layer = layers.get(storage_key(slot.target))
            if layer is not None and slot.kind == "matrix":
                number = numbers.setdefault(id(layer), len(numbers))
                module = name.removesuffix(".weight")
                found[module] = _site_of(module, number, layer, slot)
    return found


@dataclass(frozen=True)
class Adapter:
    """An adapter's directory, checked without reading a weight.

    Attributes:
        modules: A and B's names in the file and the scale, by site.
        rank: the largest.
    """

    source: Path
    file: SafetensorsCheckpoint
    modules: Mapping[str, tuple[str, str, float]]
    rank: int

    @property
    def kinds(self) -> list[str]:
        """The last part of the modules' names."""
        return sorted({_kind(site) for site in self.modules})


def open_adapter(
    directory: Path, sites: Mapping[str, Site], max_rank: int, kinds: Sequence[str] = ()
) -> Adapter:
    """``kinds``: modules that may be adapted, by the last part of their names; () for all.

    Raises ValueError, naming file, value and limit, where the adapter cannot be used with the model
    that has these sites.
    """
    if not directory.is_dir():
        raise ValueError(f"adapter path {directory} is no directory.")
    if not (directory / CONFIG).exists():
        raise ValueError(f"{directory} has no {CONFIG}; it is no adapter in PEFT's layout.")
    if not (directory / FILE).exists():
        raise ValueError(f"{directory} has no {FILE}; save the adapter with safetensors.")
    config = read_json(inside(directory, CONFIG))
    _verify(config)
    file = SafetensorsCheckpoint(directory, FILE)
    halves: dict[str, dict[str, str]] = {}
    for name in file.shapes:
        match = _TENSOR.fullmatch(name)
        site = _site(match[1], sites) if match else None
        if match is None or site is None:
            raise ValueError(f"{directory / FILE}: {name} {_why_not(name, sites)}.")
        if kinds and _kind(site) not in kinds:
            raise ValueError(
                f"{directory / FILE}: {name} adapts {_kind(site)}; --lora-target-modules has "
                f"{', '.join(kinds)}."
            )
        _verify_target(config, match[1])
        if match[2] in halves.setdefault(site, {}):
            raise ValueError(f"{directory / FILE}: {name} is there twice, for {site}.")
        halves[site][match[2]] = name
    if not halves:
        raise ValueError(f"{directory / FILE} has no tensors.")
    modules, largest = {}, 0
    for site, names in sorted(halves.items()):
        rank, scale = _module(config, file, sites[site], names)
        if rank > max_rank:
            raise ValueError(
                f"{config.source}: {site} has rank {rank}; the limit is {max_rank} "
                "(--max-lora-rank)."
            )
        modules[site] = (names["A"], names["B"], scale)
        largest = max(largest, rank)
    return Adapter(directory, file, modules, largest)


def read_adapter(
    adapter: Adapter, sites: Mapping[str, Site], products: int, dtype: DType
) -> Weights:
    """The adapter's weights in ``dtype``. Raises ValueError for values that are not
    finite."""
    pairs: dict[int, list[Pair]] = {}
    for name, (a, b, scale) in adapter.modules.items():
        site = sites[name]
        pair = site.pair(adapter.file.read(a), adapter.file.read(b), scale, dtype)
        if not all(np.isfinite(half).all() for half in (pair.a, pair.b)):
            raise ValueError(f"{adapter.source / FILE}: {name} has values that are not finite.")
        pairs.setdefault(site.number, []).append(pair)
        adapter.file.forget(a)
        adapter.file.forget(b)
    return Weights(pairs, products)


def _verify(config: Fields) -> None:
    """Raise ValueError where an adapter is not plain LoRA."""
    if config.text("peft_type") != "LORA":
        raise config.error("peft_type", "only LORA is supported.")
    for key, why in _REFUSED.items():
        if config.values.get(key):
            raise config.error(key, f"it is not supported: {why}.")
    if config.text("bias", "none") != "none":
        raise config.error("bias", "only none is supported: the model's biases stay as they are.")
    if config.values.get("init_lora_weights") not in _PLAIN_INITS:
        raise config.error(
            "init_lora_weights",
            "such an adapter changes the model's own weights; save it converted to a plain one.",
        )
    config.int("r")
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern in config.fields(key).values:
            if not _NAME.fullmatch(pattern):
                raise config.error(key, f"{pattern!r:.80} is no name of a module; write names out.")


def _verify_target(config: Fields, module: str) -> None:
    """A regular expression is not evaluated: the file itself says which modules there are."""
    targets = config.values.get("target_modules")
    if targets is None or isinstance(targets, str):
        return
    if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
        raise config.error("target_modules", "it must be a list of names or a string.")
    if not any(module == one or module.endswith(f".{one}") for one in targets):
        raise config.error("target_modules", f"the file has weights of {module} too.")


def _site(module: str, sites: Mapping[str, Site]) -> str | None:
    """The site that a module is; wrappers may have put something before its name."""
    if module in sites:
        return module
    parts = module.split(".")
    tails = (".".join(parts[i:]) for i in range(1, len(parts)))
    tail = next((tail for tail in tails if tail in sites), None)
    if tail is not None:
        return tail
    # The text model of one that sees has had several names; its tower's layers are none of it.
    before, layers, rest = module.rpartition("layers.")
    if not layers or any(word in before for word in ("vision", "visual", "projector")):
        return None
    ends = [site for site in sites if site.endswith(f"layers.{rest}")]
    return ends[0] if len(ends) == 1 else None


def _kind(site: str) -> str:
    return site.rpartition(".")[2]


def _why_not(name: str, sites: Mapping[str, Site]) -> str:
    if "lora_embedding" in name or "embed" in name or "lm_head" in name:
        return "adapts the embedding or the output head, which is not supported"
    kinds = sorted(set(map(_kind, sites)))
    return f"is no part of an adapter of this model, which has {', '.join(kinds)}"


def _module(
    config: Fields, file: SafetensorsCheckpoint, site: Site, names: Mapping[str, str]
) -> tuple[int, float]:
    """Rank and scale of one module. Raises ValueError where its tensors are none of the model's."""
    if len(names) != 2:
        raise ValueError(f"{file.source / FILE}: {site.name} has only half of its two matrices.")
    rank = int(_pattern(config, "rank_pattern", site.name) or config.int("r"))
    outputs, inputs = site.shape
    for half, wanted in (("A", (rank, inputs)), ("B", (outputs, rank))):
        name = names[half]
        if file.shapes[name] != wanted:
            raise ValueError(
                f"{file.source / FILE}: tensor {name} has shape {list(file.shapes[name])}; rank "
                f"{rank} and the model ask for {list(wanted)}."
            )
        if file.entries[name].dtype not in DTYPES:
            raise ValueError(
                f"{file.source / FILE}: tensor {name} has dtype {file.entries[name].dtype}; use "
                f"one of {', '.join(DTYPES)}."
            )
    alpha = _pattern(config, "alpha_pattern", site.name)
    alpha = config.float("lora_alpha", 8.0) if alpha is None else alpha
    return rank, alpha / (math.sqrt(rank) if config.flag("use_rslora") else rank)


def _pattern(config: Fields, key: str, module: str) -> float | None:
    """The value of the first name in a table that is the module's or its end."""
    table = config.fields(key)
    for pattern in table.values:
        if _names(pattern, module):
            low = 1.0 if key == "rank_pattern" else 0.0
            value = table.float(pattern, low=low)
            if key == "rank_pattern" and value != int(value):
                raise table.error(pattern, "it must be an integer.")
            return value
    return None


def _names(pattern: str, module: str) -> bool:
    """Whether it is the module's name or, unless it begins with ``^``, the end of it."""
    name = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
    return module == name or (not pattern.startswith("^") and module.endswith(f".{name}"))
