"""Graphs: decode passes replayed as CUDA graphs, one launch in place of hundreds.

A graph has a fixed number of rows. There is one graph for each of a few sizes (*buckets*), and a
pass uses the smallest bucket that holds it. Padding rows decode token 0 of a sequence in the
padding page: they write the pool's last slot, which no row of the pass reads.

    inputs (any addresses) -> static buffers -> graph -> static outputs

Other passes (prompts, mixed passes, more rows or pages than the buffers hold) run eagerly. A
replayed pass gives the same bits as an eager pass of as many rows as the bucket. With another
number of rows, a matrix product may choose another order of summation.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from sglang.srt.attention.attention_protocol import (
    Attention,
    Capturable,
    Int32Array,
    Layout,
    Resident,
)
from sglang.srt.attention.slots import padded
from sglang.srt.core.batch import Sample
from sglang.srt.layers.torch_writer import ForwardStep, forward
from sglang.srt.logits.drawing import Drawing
from sglang.srt.logits.torch_results import pick
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.models.weights import progress
from sglang.srt.worker.device_tables import DeviceTables
from sglang.srt.worker.forward import Eager
from sglang.srt.worker.inputs import Inputs
from sglang.srt.worker.kv import KVPool
from torch import Tensor

log = logging.getLogger("sglang.srt.worker")
# Page table entries, of 4 bytes each, that the static buffers hold for one pass.
TABLE = 1 << 22
# Limit of the logits that a graph computes, rows times vocabulary: as many as ``runner`` computes
# at once. Larger buckets compute their logits outside the graph.
LOGITS = 1 << 24


class GraphRecorder(Protocol):
    """Records work on static buffers, so that it can be repeated."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run ``work`` at least once and return a function that repeats it."""
        ...


class CudaRecorder:
    """CUDA graphs that share one pool of memory: two of them never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        # The first runs are not captured: they compile kernels and allocate library workspaces.
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            for _ in range(2):
                work()
        current.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                work()
        except BaseException:
            torch.cuda.set_stream(current)  # a failed capture may leave its own stream current
            raise
        return graph.replay


class Again:
    """Recorder without graphs: replay calls the work itself on the static buffers. Used in tests
    and on devices that have no graphs."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return work


def buckets(most: int) -> list[int]:
    """Return the sizes of graphs in rows: 1, 2, 4, 8, 16, 24, 32, ... and ``most``, the largest."""
    sizes = [1, 2, 4, 8, *range(16, most + 1, 8)]
    return sorted({size for size in sizes if size <= most} | {most})


class StaticBuffers:
    """Tensors at fixed addresses that the graphs read and write. A graph uses their first rows.

    Attributes:
        tokens: int32 [most].
        positions: int32 [most], or [3, most] of a model whose positions have three parts.
        states: hidden states [most, width]; None until the largest graph has computed them.
        scores: float32 logits of the largest graph that computes any; None before.
    """

    def __init__(self, model: DecoderModel, most: int, device: torch.device) -> None:
        self.model, self.most = model, most
        shape = (3, most) if model.sections else (most,)
        self.tokens = torch.zeros(most, dtype=torch.int32, device=device)
        self.positions = torch.zeros(shape, dtype=torch.int32, device=device)
        self.states: Tensor | None = None
        self.scores: Tensor | None = None

    def fill(self, inputs: Inputs) -> None:
        """Copy tokens and positions of a pass. Rows after them keep older, valid values."""
        rows = len(inputs.layout.counts)
        self.tokens[:rows].copy_(inputs.tokens)
        self.positions[..., :rows].copy_(inputs.positions)

    def compute(self, size: int, attention: Attention) -> None:
        """Compute the first ``size`` rows into ``states``, and their logits if ``scored(size)``."""
        step = ForwardStep(self.positions[..., :size], attention)
        hidden = forward(self.model, self.tokens[:size], step)
        if self.states is None:
            self.states = hidden.new_zeros(self.most, hidden.shape[1])
        self.states[:size].copy_(hidden)
        if not self.scored(size):
            return
        logits = self.model.logits(hidden)
        if self.scores is None:
            self.scores = logits.new_zeros(size, logits.shape[1], dtype=torch.float32)
        self.scores[:size].copy_(logits)

    def scored(self, size: int) -> bool:
        """Return True if the graph of ``size`` rows computes logits."""
        return size * self.model.spec.vocab_size <= LOGITS


class CapturedGraph(NamedTuple):
    """Graph of one bucket. ``frame``: its attention; ``replay``: function that runs the graph."""

    frame: Attention
    replay: Callable[[], None]


class Graphs:
    """Implements ``forward.Forward``. The constructor captures every bucket, largest first, so
    that smaller graphs reuse the memory of larger ones."""

    def __init__(
        self,
        model: DecoderModel,
        attention: Capturable,
        recorder: GraphRecorder,
        pool: KVPool,
        most: int,
        context_length: int,
    ) -> None:
        """``most``: rows of the largest bucket. The pool's padding slot is its page number
        ``pool.pages``."""
        self.model, self.eager = model, Eager(model, attention)
        self.sizes, self.padding = buckets(most), pool.pages
        # Tables may share pages, so their total size is bounded by the rows, not by the pool.
        self.table = min(most * -(-context_length // pool.page_size), max(TABLE, pool.pages + most))
        self.buffers = StaticBuffers(model, most, pool.keys[0].device)
        self.captured: dict[int, CapturedGraph] = {}
        # Last result of ``hidden`` if a graph computed it, and the number of rows whose logits
        # the graph computed.
        self._last: Tensor | None = None
        self._scored = 0
        began = time.perf_counter()
        bar = progress(len(self.sizes), "capturing graphs", unit=" graphs")
        with torch.inference_mode(), bar:
            for size in reversed(self.sizes):
                frame = attention.frame(size, self.table, context_length)
                frame.plan(padded(_nothing(), size, self.padding))
                replay = recorder.record(partial(self.buffers.compute, size, frame))
                self.captured[size] = CapturedGraph(frame, replay)
                bar.update(1)
        smallest = self.captured[self.sizes[0]].frame
        self.resident: DeviceTables | None = None
        if isinstance(smallest, Resident):
            self.resident = DeviceTables(smallest.entries, self.padding)
        log.info(
            "captured %d graphs of 1 to %d rows in %.1f s",
            len(self.sizes), most, time.perf_counter() - began,
        )  # fmt: skip

    def bucket(self, layout: Layout) -> int:
        """Return the rows of the graph for a pass of this layout, 0 if the pass runs eagerly."""
        rows, most = len(layout.counts), self.sizes[-1]
        if rows > most or len(layout.positions) != rows:
            return 0
        size = self.sizes[bisect_left(self.sizes, rows)]
        return size if len(layout.pages) + size - rows <= self.table else 0

    def hidden(self, inputs: Inputs, wanted: Int32Array) -> Tensor:
        self._last = None
        eager = inputs.embedded is not None or inputs.use is not None
        size = 0 if eager else self.bucket(inputs.layout)
        if not size:
            return self.eager.hidden(inputs, wanted)
        rows, buffers, graph = len(inputs.layout.counts), self.buffers, self.captured[size]
        buffers.fill(inputs)
        self._plan(graph.frame, size, inputs)
        graph.replay()
        assert buffers.states is not None
        self._scored = rows if buffers.scored(size) else 0
        self._last = pick(buffers.states[:rows], wanted)
        return self._last

    def _plan(self, frame: Attention, size: int, inputs: Inputs) -> None:
        """Plan a pass with the page tables on the device; if they do not fit, send all entries."""
        layout, tables, resident = inputs.layout, inputs.tables, self.resident
        if resident is not None:
            if inputs.contexts and tables is not None:
                if tables.on_device is not resident:  # ``resident`` missed earlier changes
                    resident.clear()
                    tables.on_device = resident
                firsts = resident.place(inputs.contexts, layout.tables, layout.pages)
                if firsts is not None and isinstance(frame, Resident):
                    return frame.plan_resident(layout, firsts, self.padding)
            resident.clear()
        frame.plan(padded(layout, size, self.padding))

    def logits(self, hidden: Tensor) -> Tensor:
        if hidden is self._last and hidden.shape[0] == self._scored:
            assert self.buffers.scores is not None
            return self.buffers.scores[: self._scored]
        return self.model.logits(hidden)

    def draw(self, logits: Tensor, samples: Sequence[Sample]) -> Drawing:
        return self.eager.draw(logits, samples)


def _nothing() -> Layout:
    none = np.zeros(0, dtype=np.int32)
    return Layout(none, none, np.zeros(1, dtype=np.int32), none, none)
