"""LoRA weights: those that are loaded, and which of them a pass needs where.

Weights lie in host memory; on a CPU products read them there, on a GPU those of a pass are copied
to the device when it is launched, and the least recently used make room. So memory is bounded by
how many may be loaded, and by how many the device may hold.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sglang.srt.config import LoraConfig
from sglang.srt.core.batch import Batch, RowOutput
from sglang.srt.layers.lora import Use, Weights
from sglang.srt.layers.weight import OutlinePlace
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.models.peft import Site, open_adapter, read_adapter, sites_of
from sglang.srt.numeric.host_arrays import FLOAT32, HOST, DType, on_host
from sglang.srt.worker.inputs import Inputs


class LoraWeights:
    """LoRA weights of one rank's adapters, by number.

    Loading and unloading may happen beside a pass, in another thread: a pass uses what was there
    when it was launched.
    """

    def __init__(
        self, sites: dict[str, Site], settings: LoraConfig, device: Any, dtype: DType
    ) -> None:
        """``sites``: of the model's modules that may be adapted; their layers get their number
        here. ``dtype``: of the weights. ``device``: of tensors, or ``HOST`` for arrays."""
        self._sites, self._settings = sites, settings
        self._device, self._dtype = device, dtype
        self._products = len({site.number for site in sites.values()})
        for site in sites.values():
            site.layer.site = site.number
        self._loaded: dict[int, Weights] = {}
        self._pinned: set[int] = set()
        self._resident: OrderedDict[int, Weights] = OrderedDict()  # used longest ago first
        self._lock = threading.Lock()

    @staticmethod
    def none() -> LoraWeights:
        """Adapters of a model that has none."""
        return LoraWeights({}, LoraConfig(), HOST, FLOAT32)

    def load(self, number: int, path: str, pinned: bool = False) -> dict[str, Any]:
        """Read the adapter in directory ``path``; facts about it. ``pinned``: it stays on the
        device. Raises ValueError where it cannot be used, MemoryError where it does not fit."""
        most = self._settings.max_loras_per_batch
        if pinned and len(self._pinned) + 1 >= most:
            raise ValueError(
                f"{len(self._pinned)} adapters are pinned and a pass may use {most} "
                "(--max-loras-per-batch); one place must stay free."
            )
        found = open_adapter(
            Path(path).expanduser(), self._sites, self._settings.max_lora_rank,
            self._settings.lora_target_modules,
        )  # fmt: skip
        try:
            weights = read_adapter(found, self._sites, self._products, self._dtype)
            if not on_host(self._device):
                weights = weights.tensors()
            if self._device.type == "cuda":
                weights = weights.pinned()
        except (RuntimeError, MemoryError) as error:
            raise MemoryError(f"{path} does not fit into memory: {error}") from error
        with self._lock:
            self._loaded[number] = weights
            if pinned:
                self._pinned.add(number)
        return {"rank": found.rank, "bytes": weights.bytes, "modules": found.kinds}

    def unload(self, number: int) -> None:
        """Forget an adapter. Its memory is free when no pass uses it any more. No effect where it
        is not loaded."""
        with self._lock:
            self._loaded.pop(number, None)
            self._resident.pop(number, None)
            self._pinned.discard(number)

    @property
    def bytes(self) -> int:
        """Bytes of all loaded adapters."""
        return sum(weights.bytes for weights in list(self._loaded.values()))

    def applied(self, batch: Batch, inputs: Inputs, outputs: Sequence[RowOutput]) -> Inputs:
        """The inputs with the adapters of the batch's rows, on the device. A row whose adapter is
        not loaded gets an error."""
        numbers = [row.adapter for row in batch.rows]
        if not any(numbers):
            return inputs
        found = {number: self._here(number) for number in sorted(set(numbers)) if number}
        for number, output in zip(numbers, outputs):
            if number and found[number] is None:
                output.error = f"adapter {number} is not loaded"
        there = {number: weights for number, weights in found.items() if weights is not None}
        places = {number: place for place, number in enumerate(there)}
        if not there:
            return inputs
        rows = np.array([places.get(number, -1) for number in numbers], dtype=np.int32)
        self._make_room(there)
        return replace(inputs, use=Use(list(there.values()), np.repeat(rows, inputs.layout.counts)))

    def _here(self, number: int) -> Weights | None:
        """The adapter on the device, None where it is not loaded."""
        with self._lock:
            weights = self._loaded.get(number)
            if weights is None or self._device.type != "cuda":
                return weights
            resident = self._resident.pop(number, None) or weights.to(self._device)
            self._resident[number] = resident
            return resident

    def _make_room(self, needed: dict[int, Weights]) -> None:
        """Forget the adapters on the device that were used longest ago. A pass that is still
        computed keeps its own: the device gives memory out again in the order of its stream."""
        with self._lock:
            over = len(self._resident) - self._settings.max_loras_per_batch
            spare = [n for n in self._resident if n not in needed and n not in self._pinned]
            for number in spare[: max(over, 0)]:
                del self._resident[number]


def resident_bytes(
    family: type[DecoderModel], spec: ModelSpec, settings: LoraConfig, device: Any,
    dtype: DType,
) -> int:  # fmt: skip
    """The most that a GPU may hold of adapters."""
    if device.type != "cuda" or not settings.enabled:
        return 0
    outline = family(spec, OutlinePlace(HOST, dtype), 1)
    shapes = [
        slot.shape
        for prefix, layer in outline.adaptable()
        for slot in layer.slots(prefix).values()
        if len(slot.shape) == 2
    ]
    each = settings.max_lora_rank * sum(map(sum, shapes)) * dtype.itemsize
    return each * (settings.max_loras_per_batch + 1)


def adapters_of(
    model: DecoderModel, settings: LoraConfig, device: Any, dtype: DType
) -> LoraWeights | None:
    """Adapters of a model whose weights have not been packed, None where they are off. Raises
    ValueError where the model has nothing to adapt."""
    if not settings.enabled:
        return None
    sites = sites_of(model.adaptable())
    if not sites:
        raise ValueError(f"--enable-lora: {type(model).__name__} has no layers that can be adapted")
    return LoraWeights(sites, settings, device, dtype)
