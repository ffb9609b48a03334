"""The choice of how passes are computed, with a failure put in at every stage of the start."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from helpers import fake_flashinfer
from helpers.paged import Paged
from helpers.tiny_model import write_config
from sglang.srt.attention import flashinfer_attention
from sglang.srt.attention.attention_protocol import Attention
from sglang.srt.attention.backend_choice import BackendChoice, build
from sglang.srt.config import Config
from sglang.srt.core.device_errors import DeviceLost
from sglang.srt.worker import torch_passes
from sglang.srt.worker.forward import Eager, Forward, ForwardChoice
from sglang.srt.worker.forward_choice import (
    ForwardSettings,
    choose_forward,
    no_warm_up,
)
from sglang.srt.worker.graphs import Again, Graphs
from sglang.srt.worker.model_loading import plan_of
from sglang.srt.worker.page_tables import PageTables
from sglang.srt.worker.runner import ModelRunner
from sglang.srt.worker.warm_up import WarmUpLimits, warm_up_both
from torch import Tensor

BOTH = [BackendChoice("flashinfer", "the fastest there is"), BackendChoice("native", "it failed")]
OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
ILLEGAL = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
INVALID = RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
LATE = 16  # tokens: more than any graph has
PROMPTS = [[3, 1, 4, 1, 5], [9, 2]]


class CompilationError(Exception):
    """A kernel does not compile; Triton's own is no RuntimeError either."""


@dataclass
class Broken:
    """A start with failures.

    Attributes:
        warmed: forwards whose warm-up came to its end.
        made, used, recorded: errors by stage, each raised once: an implementation is made, computes
            its first layer, or the n-th graph is recorded.
        late: errors of an implementation in passes of more than ``LATE`` tokens, each raised once,
            the first one first.
        attempts: what was tried, in order.
    """

    worker: Paged
    config: Config
    made: dict[str, Exception] = field(default_factory=dict)
    used: dict[str, Exception] = field(default_factory=dict)
    recorded: dict[int, Exception] = field(default_factory=dict)
    late: dict[str, list[Exception]] = field(default_factory=dict)
    attempts: list[str] = field(default_factory=list)
    warmed: list[Forward] = field(default_factory=list)
    graphs: int = 0

    def make(self, name: str) -> Attention:
        self.attempts.append(name)
        if name in self.made:
            raise self.made.pop(name)
        pool, spec = self.worker.worker.runner.pool, self.worker.worker.model.spec
        attention: Any = build(name, pool.keys, pool.values, pool.page_size, spec)
        attend = attention.attend

        def attending(*arguments: Any) -> Tensor:
            if name in self.used:
                raise self.used.pop(name)
            if len(arguments[1]) > LATE and self.late.get(name):
                raise self.late[name].pop(0)
            return attend(*arguments)

        attention.attend = attending
        return attention

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.graphs += 1
        if self.graphs in self.recorded:
            raise self.recorded.pop(self.graphs)
        return Again().record(work)

    def start(self, rows: int = 8, choices: list[BackendChoice] = BOTH) -> ForwardChoice:
        worker = self.worker.worker
        settings = ForwardSettings(256, rows, lambda: self, warm_up=self.warm_up)
        return choose_forward(choices, self.make, worker.model, worker.runner.pool, settings)

    def warm_up(self, forward: Forward) -> None:
        """The real warm-up, of prompts of up to 32 tokens."""
        now = self.worker.worker.runner
        tables = PageTables(now.pool.pages, now.pool.page_size)
        runner = ModelRunner(forward, now.pool, replace(now.reader, tables=tables))
        warm_up_both(runner, WarmUpLimits(4, 32, generates=True))
        self.warmed.append(forward)

    def check(self, chosen: ForwardChoice) -> None:
        """Hold what the choice computes to what the worker computed before."""
        want = self.worker.greedy(PROMPTS, 6)
        self.worker.worker.runner.forward = chosen.forward
        assert self.worker.greedy(PROMPTS, 6) == want


@pytest.fixture
def broken(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Broken:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    monkeypatch.setattr(flashinfer_attention, "SCHEDULE", 1 << 10)
    path = write_config(tmp_path, head_dim=16, sliding_window=None)
    settings = {"load_format": "dummy", "cpu_kernels": "torch"}
    worker = Paged(path, 1, 0, **settings)
    config = Config.of(model_path=path, device="cpu", dtype="float32", **settings)
    for pool in worker.worker.runner.pool.keys + worker.worker.runner.pool.values:
        pool.data.zero_()
    return Broken(worker, config)


def test_graphs_of_the_first_implementation_where_nothing_fails(
    broken: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        chosen = broken.start()
    assert (chosen.attention, chosen.graph_rows, chosen.fallbacks) == ("flashinfer", 8, ())
    assert isinstance(chosen.forward, Graphs)
    assert "attention: flashinfer (the fastest there is)" in caplog.text
    assert broken.warmed == [chosen.forward]
    broken.check(chosen)


def test_a_refused_capture_leaves_eager_passes(
    broken: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    broken.recorded[2] = INVALID
    chosen = broken.start()
    assert isinstance(chosen.forward, Eager)
    assert (chosen.attention, chosen.graph_rows) == ("flashinfer", 0)
    assert broken.attempts == ["flashinfer", "flashinfer"], "the second one for the graphs"
    text = (
        "capturing CUDA graphs of 8 rows failed (RuntimeError: CUDA error: operation not permitted "
        "when stream is capturing); passes run eagerly"
    )
    assert chosen.fallbacks == (text,)
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == [text]
    broken.check(chosen)


@pytest.mark.parametrize(
    ("failing", "rows", "graphs"), [((1,), 4, 3), ((1, 2), 2, 2), ((3, 6), 2, 2), ((1, 2, 3), 1, 1)]
)
def test_short_memory_takes_smaller_graphs(
    broken: Broken, failing: tuple[int, ...], rows: int, graphs: int
) -> None:
    broken.recorded = dict.fromkeys(failing, OOM)
    chosen = broken.start()
    assert chosen.graph_rows == rows
    assert isinstance(chosen.forward, Graphs)
    assert len(chosen.forward.sizes) == graphs
    assert len(chosen.fallbacks) == len(failing)
    assert chosen.fallbacks[-1].endswith(f"; {rows} rows are tried")
    broken.check(chosen)


def test_no_memory_for_any_graph_leaves_eager_passes(broken: Broken) -> None:
    broken.recorded = dict.fromkeys(range(1, 5), OOM)
    chosen = broken.start()
    assert isinstance(chosen.forward, Eager)
    assert chosen.fallbacks[-1].startswith("capturing CUDA graphs of 1 rows failed")
    assert chosen.fallbacks[-1].endswith("passes run eagerly")
    broken.check(chosen)


@pytest.mark.parametrize("stage", ["made", "used"])
@pytest.mark.parametrize("error", [CompilationError("no nvcc"), OOM, ImportError("a symbol")])
def test_an_implementation_that_fails_gives_way_to_the_next(
    broken: Broken, stage: str, error: Exception
) -> None:
    getattr(broken, stage)["flashinfer"] = error
    chosen = broken.start()
    assert chosen.attention == "native"
    assert broken.attempts == ["flashinfer", "native"]
    (line,) = chosen.fallbacks
    assert line.startswith(f"attention by flashinfer failed ({type(error).__name__}: ")
    assert line.endswith("; native is used")
    broken.check(chosen)


@pytest.mark.parametrize(
    ("error", "kind"), [(CompilationError("no nvcc"), RuntimeError), (OOM, MemoryError)]
)
def test_the_last_failure_ends_the_start(
    broken: Broken, error: Exception, kind: type[Exception]
) -> None:
    broken.made, broken.used = {"flashinfer": CompilationError("x")}, {"native": error}
    with pytest.raises(kind, match=r"attention by native failed: .*--disable-cuda-graph"):
        broken.start()
    broken.used["flashinfer"] = error
    with pytest.raises(kind, match="attention by flashinfer failed"):
        broken.start(choices=BOTH[:1])  # requested by name


@pytest.mark.parametrize("stage", ["used", "recorded"])
def test_a_lost_device_ends_the_start_at_once(broken: Broken, stage: str) -> None:
    """No other implementation could run in this process."""
    getattr(broken, stage)["flashinfer" if stage == "used" else 1] = ILLEGAL
    with pytest.raises(DeviceLost, match=r"and the GPU with it: .*illegal memory.*; start with"):
        broken.start()
    assert "native" not in broken.attempts


@pytest.mark.parametrize(("errors", "rows"), [(1, 4), (2, 2), (4, 0)])
def test_a_warm_up_without_memory_takes_smaller_graphs(
    broken: Broken, errors: int, rows: int
) -> None:
    broken.late["flashinfer"] = [OOM] * errors
    chosen = broken.start()
    assert (chosen.attention, chosen.graph_rows) == ("flashinfer", rows)
    assert isinstance(chosen.forward, Graphs if rows else Eager)
    assert len(chosen.fallbacks) == errors
    assert chosen.fallbacks[0].startswith("the warm-up with CUDA graphs of 8 rows failed (MemoryE")
    assert "no memory left for a pass of a prompt of 32 tokens" in chosen.fallbacks[0]
    assert chosen.fallbacks[-1].endswith(f"; {rows} rows are tried" if rows else "run eagerly")
    assert broken.warmed == [chosen.forward]
    broken.check(chosen)


def test_a_warm_up_of_graphs_that_fails_leaves_eager_passes(broken: Broken) -> None:
    broken.late["flashinfer"] = [CompilationError("out of registers")]
    chosen = broken.start()
    assert isinstance(chosen.forward, Eager)
    assert chosen.attention == "flashinfer"
    text = "the warm-up with CUDA graphs of 8 rows failed (CompilationError: out of registers); "
    assert chosen.fallbacks == (text + "passes run eagerly",)
    assert broken.warmed == [chosen.forward]
    broken.check(chosen)


def test_a_failed_eager_warm_up_takes_the_next_implementation(broken: Broken) -> None:
    broken.late["flashinfer"] = [CompilationError("of a prompt")]
    chosen = broken.start(rows=0)
    assert chosen.attention == "native"
    assert chosen.fallbacks == (
        "attention by flashinfer failed (CompilationError: of a prompt); native is used",
    )
    assert broken.warmed == [chosen.forward]
    broken.check(chosen)


def test_a_warm_up_that_fails_ends_a_start_by_name(broken: Broken) -> None:
    broken.late["flashinfer"] = [OOM] * 5
    with pytest.raises(MemoryError, match="a pass of a prompt of 32 tokens; lower"):
        broken.start(choices=BOTH[:1])


def test_a_device_lost_in_the_warm_up_ends_the_start(broken: Broken) -> None:
    broken.late["flashinfer"] = [ILLEGAL]
    with pytest.raises(DeviceLost, match=r"the warm-up .*, and the GPU with it: .*illegal memory"):
        broken.start()
    assert "native" not in broken.attempts


def test_fused_sampling_that_fails_gives_way_to_torchs(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Eager.draw

    def failing(self: Eager, *arguments: Any) -> Any:
        if self.fused_sampling:
            raise CompilationError("out of shared memory")
        return draw(self, *arguments)

    monkeypatch.setattr(Eager, "draw", failing)
    chosen = broken.start()
    assert isinstance(chosen.forward, Graphs)
    assert not chosen.forward.eager.fused_sampling
    assert chosen.fallbacks == (
        "sampling by fused kernels failed (CompilationError: out of shared memory); torch's "
        "sampler is used",
    )
    broken.worker.worker.runner.forward.fused_sampling = False  # type: ignore[attr-defined]
    broken.check(chosen)


@pytest.mark.parametrize("wrong", [False, True])
def test_flash_attention_3_is_checked_before_it_is_used(
    broken: Broken, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [BackendChoice("flashinfer-fa3", "compiled"), BackendChoice("native", "it failed")]
    monkeypatch.setattr(torch_passes, "candidates", lambda *_: chosen)
    row = fake_flashinfer._Wrapper._row

    def mistaken(self: Any, q: Tensor, *arguments: Any) -> Any:
        return row(self, q * 1.2 if self.backend == "fa3" else q, *arguments)

    if wrong:
        monkeypatch.setattr(fake_flashinfer._Wrapper, "_row", mistaken)
    worker = broken.worker.worker
    plan = plan_of(broken.config)
    settings, pool = broken.config.model, worker.runner.pool
    found = torch_passes.by_torch(plan, settings, worker.model, pool, no_warm_up)
    assert found.attention == ("native" if wrong else "flashinfer-fa3")
    assert len(found.fallbacks) == wrong
    assert all("differ from the reference" in line for line in found.fallbacks)
    broken.check(found)


def test_a_failed_attempt_is_freed_before_the_next(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attention of an attempt is gone when the next one is made."""
    alive: list[weakref.ref[Any]] = []
    make = broken.make

    def making(name: str) -> Attention:
        gc.collect()
        assert sum(ref() is not None for ref in alive) <= 1, "the eager one may be there"
        made = make(name)
        alive.append(weakref.ref(made))
        return made

    # An exception holds the frames that it was raised in; these are held by nothing else.
    broken.recorded = {n: torch.OutOfMemoryError("CUDA out of memory") for n in (1, 2)}
    monkeypatch.setattr(broken, "make", making)
    assert broken.start().graph_rows == 2
    assert len(alive) == 4
