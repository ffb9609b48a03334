"""Ranks of a tensor-parallel group as threads of this process, and a model's logits on them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sglang.srt.attention.attention_protocol import Layout
from sglang.srt.attention.native_attention import NativeAttention
from sglang.srt.core.batch import Batch, Row
from sglang.srt.core.ints import ints
from sglang.srt.layers.tape_writer import missing_word
from sglang.srt.layers.torch_writer import ForwardStep, forward
from sglang.srt.layers.weight import Place
from sglang.srt.models import weights
from sglang.srt.models.checkpoint_format import open_checkpoint
from sglang.srt.models.model_spec import read_config
from sglang.srt.models.registry import lookup
from sglang.srt.models.renamed_checkpoint import named
from sglang.srt.parallel.groups import Group, SharedGroup
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
    threads: Meeting = field(default_factory=lambda: Meeting(1))

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self.threads.exchange(self.rank, x)).sum(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self.threads.exchange(self.rank, x), dim=-1)


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

    return _of_ranks(rank, size)


def native_split_logits(path: str, tokens: list[int], size: int) -> list[Tensor]:
    """The same by native kernels, which sum through shared memory."""
    from sgl_kernel import meeting

    memory = mmap(-1, meeting.meeting_bytes(size))

    def rank(number: int) -> Tensor:
        met = meeting.Meeting(memory, number, size)
        with torch.inference_mode():
            return _native_logits(path, tokens, SharedGroup(number, size, None, met))

    return _of_ranks(rank, size)


def _of_ranks(rank: Callable[[int], Tensor], size: int) -> list[Tensor]:
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
    step = ForwardStep(torch.from_numpy(places), attention)
    hidden = forward(model, torch.tensor(tokens), step)
    return model.logits(hidden)


def _native_logits(path: str, tokens: list[int], group: Group) -> Tensor:
    from sglang.srt.worker.inputs import InputReader
    from sglang.srt.worker.native_forward import Layered, Native
    from sglang.srt.worker.packer import Packer
    from sglang.srt.worker.page_tables import PageTables

    fields, architecture = read_config(Path(path))
    family, count = lookup(architecture), len(tokens)
    spec, cpu = family.read(fields, architecture), torch.device("cpu")
    model = family(spec, Place(cpu, torch.float32, group, torch.float32), count)
    packer = Packer(model, "", 1)
    checkpoint = named(open_checkpoint(Path(path), fields), family)
    weights.load(model.slots(), checkpoint, show=False, filled=packer.filled)
    kv = spec.kv if spec.kv.shared else replace(spec.kv, heads=max(1, spec.kv.heads // group.size))
    pool = KVPool(spec.num_layers, kv, count, 1, torch.float32, cpu)
    native = (Layered if missing_word(model) else Native)(model, pool, 1)
    reader = InputReader(PageTables(count, 1), cpu, spec.vocab_size, count)
    inputs = reader.read(Batch(0, [Row(0, 0, ints(tokens), ints(range(count)))]))
    return native.logits(native.hidden(inputs, np.arange(count, dtype=np.int32)))
