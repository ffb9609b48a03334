"""Bench: what every stage is given: the device, the clock, the sizes, and where results go."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Value = str | float | int | None


@dataclass
class Table:
    """Rows of one stage, and remarks about what was left out and why."""

    stage: str
    rows: list[dict[str, Value]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def text(self) -> str:
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        lines = [columns, *([_shown(row.get(name)) for name in columns] for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        shown = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths)) for line in lines]
        return "\n".join([f"== {self.stage}", *shown, *self.remarks])


def _shown(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


@dataclass
class Bench:
    """``deadline``: time.monotonic() at which the current stage has to end.

    Attributes:
        copy, product: measured ceilings, bytes and floating-point operations a second.
    """

    device: torch.device
    dtype: torch.dtype
    tiny: bool
    out: Path | None
    backend: str
    copy: float = 0.0
    product: float = 0.0
    deadline: float = 0.0
    tables: list[Table] = field(default_factory=list)

    @property
    def left(self) -> float:
        """Seconds the stage may still take."""
        return self.deadline - time.monotonic()

    def table(self, stage: str) -> Table:
        self.tables.append(Table(stage))
        return self.tables[-1]

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], Any], rounds: int = 20, longest: float = 1.0) -> float:
        """Median seconds of ``work`` after two warm-ups, by the device's own clock; fewer rounds
        where they would take more than ``longest`` seconds."""
        work()
        self.sync()
        began = time.perf_counter()
        work()
        self.sync()
        once = time.perf_counter() - began
        rounds = 2 if self.tiny else max(3, min(rounds, int(longest / max(once, 1e-6))))
        return statistics.median(self._once(work) for _ in range(rounds))

    def _once(self, work: Callable[[], Any]) -> float:
        if self.device.type != "cuda":
            began = time.perf_counter()
            work()
            return time.perf_counter() - began
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def save(self) -> None:
        """Everything so far, as JSON."""
        if self.out is None:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        stages = {
            table.stage: {"rows": table.rows, "remarks": table.remarks} for table in self.tables
        }
        (self.out / "gpu.json").write_text(json.dumps(stages, indent=1), encoding="utf-8")
