"""LoRA weights: the loaded adapters, and their copies on the device.

All loaded adapters are in host memory, where products on a CPU read them. On a GPU, the launch of a
pass copies its adapters to the device and drops the least recently used ones. Memory is bounded by
the number of loaded adapters and the number of adapters on the device.
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

    Another thread may load and unload adapters during a pass: a pass uses the adapters that were
    loaded when it was launched.
    """

    def __init__(
        self, sites: dict[str, Site], settings: LoraConfig, device: Any, dtype: DType
    ) -> None:
        """``sites``: modules of the model that may be adapted; sets ``site`` of their layers.
        ``dtype``: dtype of the weights. ``device``: device of passes, ``HOST`` for arrays."""
        self._sites, self._settings = sites, settings
        self._device, self._dtype = device, dtype
        self._products = len({site.number for site in sites.values()})
        for site in sites.values():
            site.layer.site = site.number
        self._loaded: dict[int, Weights] = {}
        self._pinned: set[int] = set()
        self._resident: OrderedDict[int, Weights] = OrderedDict()  # on the GPU, oldest use first
        self._lock = threading.Lock()

    @staticmethod
    def none() -> LoraWeights:
        """Return the weights of a model without adapters."""
        return LoraWeights({}, LoraConfig(), HOST, FLOAT32)

    def load(self, number: int, path: str, pinned: bool = False) -> dict[str, Any]:
        """Read the adapter in directory ``path``; return its rank, bytes, modules. ``pinned``: keep
        it on the device. Raises ValueError, or MemoryError if the adapter does not fit."""
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
        """Forget an adapter. Its memory is freed when no pass uses it any more. An adapter that is
        not loaded is ignored."""
        with self._lock:
            self._loaded.pop(number, None)
            self._resident.pop(number, None)
            self._pinned.discard(number)

    @property
    def bytes(self) -> int:
        """Bytes of all loaded adapters."""
        return sum(weights.bytes for weights in list(self._loaded.values()))

    def applied(self, batch: Batch, inputs: Inputs, outputs: Sequence[RowOutput]) -> Inputs:
        """Return the inputs with the adapters of the batch's rows, copied to the device. The output
        of a row whose adapter is not loaded gets an error."""
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
        """Return the adapter's weights on the device, None if the adapter is not loaded."""
        with self._lock:
            weights = self._loaded.get(number)
            if weights is None or self._device.type != "cuda":
                return weights
            resident = self._resident.pop(number, None) or weights.to(self._device)
            self._resident[number] = resident
            return resident

    def _make_room(self, needed: dict[int, Weights]) -> None:
        """Drop the least recently used adapters from the device. A pass in flight can still read
        its adapters, because the device reuses freed memory in the order of its stream."""
        with self._lock:
            over = len(self._resident) - self._settings.max_loras_per_batch
            spare = [n for n in self._resident if n not in needed and n not in self._pinned]
            for number in spare[: max(over, 0)]:
                del self._resident[number]


def resident_bytes(
    family: type[DecoderModel], spec: ModelSpec, settings: LoraConfig, device: Any,
    dtype: DType,
) -> int:  # fmt: skip
    """Return the bytes of the most adapters that may be on a GPU at once; 0 on a CPU."""
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
    """Return the LoRA weights of a model that is not packed yet; None without --enable-lora.
    Raises ValueError if no layer of the model can be adapted."""
    if not settings.enabled:
        return None
    sites = sites_of(model.adaptable())
    if not sites:
        raise ValueError(f"--enable-lora: {type(model).__name__} has no layers that can be adapted")
    return LoraWeights(sites, settings, device, dtype)
