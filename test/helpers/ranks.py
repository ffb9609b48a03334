"""Ranks of a tensor-parallel group as threads of this process, and a model's logits on them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sglang.srt.attention.attention_protocol import Layout
from sglang.srt.attention.native_attention import NativeAttention
from sglang.srt.layers.weight import Place
from sglang.srt.models import weights
from sglang.srt.models.checkpoint_format import open_checkpoint
from sglang.srt.models.model_spec import read_config
from sglang.srt.models.registry import lookup
from sglang.srt.models.renamed_checkpoint import named
from sglang.srt.parallel.groups import Group
from sglang.srt.worker.kv import KVPool
from torch import Tensor


class Meeting:
    """Exchange of tensors between ranks."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=30)
        self.brought: list[Any] = [None] * size

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        """Tensors of all ranks, in rank order."""
        self.brought[rank] = x.clone()
        self.barrier.wait()
        found = list(self.brought)
        self.barrier.wait()
        return found


@dataclass(frozen=True)
class ThreadGroup(Group):
    meeting: Meeting = field(default_factory=lambda: Meeting(1))

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self.meeting.exchange(self.rank, x)).sum(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self.meeting.exchange(self.rank, x), dim=-1)


def split_logits(path: str, tokens: list[int], size: int) -> list[Tensor]:
    """Logits of a text [tokens, vocab] as each of ``size`` ranks has them."""
    meeting = Meeting(size)

    def rank(number: int) -> Tensor:
        try:
            with torch.inference_mode():
                return _logits(path, tokens, ThreadGroup(number, size, None, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        found = [threads.submit(rank, number) for number in range(size)]
        # The first error says more than its consequences.
        for future in found:
            if not isinstance(future.exception(), threading.BrokenBarrierError):
                future.result()
        return [future.result() for future in found]


def _logits(path: str, tokens: list[int], group: Group) -> Tensor:
    fields, architecture = read_config(Path(path))
    family = lookup(architecture)
    spec = family.read(fields, architecture)
    model = family(spec, Place(torch.device("cpu"), torch.float32, group), len(tokens))
    checkpoint = named(open_checkpoint(Path(path), fields), family)
    weights.load(model.slots(), checkpoint, show=False)
    kv, count = spec.kv, len(tokens)
    if not kv.shared:
        kv = replace(kv, heads=kv.heads // group.size)
    pool = KVPool(spec.num_layers, kv, count, 1, torch.float32, torch.device("cpu"))
    attention = NativeAttention(pool.keys, pool.values, 1, spec.windows)
    places = np.arange(count, dtype=np.int32)
    ends = np.array([0, count], dtype=np.int32)
    attention.plan(Layout(ends[:1], ends[1:], ends, places, places))
    hidden = model.forward(torch.tensor(tokens), torch.from_numpy(places), attention)
    return model.logits(hidden)
