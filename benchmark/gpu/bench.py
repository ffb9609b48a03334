"""Bench: what every stage is given: the device, the sizes, the clock, and where its results go."""

from __future__ import annotations

import faulthandler
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmark.gpu.records import Log, Value, shown

# Seconds of one case of a kernel, what is compiled at first use included.
CASE_SECONDS = 120


@dataclass
class Bench:
    """Settings of one stage's run.

    Attributes:
        tiny: toy sizes on a CPU, where times mean nothing.
        settings: the engine's settings, by the mode of this attempt (``stages.MODES``).
        copy, product: measured ceilings, bytes and floating-point operations a second; 0: unknown.
        begun: cases that an earlier attempt began, the last of which may have killed it.
        deadline: ``time.monotonic()`` at which the stage has to end.
    """

    device: torch.device
    dtype: torch.dtype
    tiny: bool
    log: Log
    deadline: float
    settings: dict[str, Any] = field(default_factory=dict)
    copy: float = 0.0
    product: float = 0.0
    begun: set[str] = field(default_factory=set)

    @property
    def left(self) -> float:
        """Seconds the stage may still take."""
        return self.deadline - time.monotonic()

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def enough(self, seconds: float, what: str) -> bool:
        """Whether ``seconds`` are left; else a remark names what is left out."""
        if self.left >= (0.0 if self.tiny else seconds):
            return True
        self.remark(f"left out for time: {what}")
        return False

    def first(self, case: str) -> bool:
        """Whether no earlier attempt began this case. From now on a hang ends the process after
        ``CASE_SECONDS``, with the stacks of all threads in the log."""
        if case in self.begun:
            return False
        self.begun.add(case)
        self.log.add("case", case=case)
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        return True

    def row(self, table: str, **values: Value) -> None:
        """Record and print one measurement."""
        self.log.row(table, values)
        print("  ".join(f"{k} {shown(v)}" for k, v in values.items() if v is not None), flush=True)

    def remark(self, text: str) -> None:
        self.log.remark(text)
        print(text, flush=True)

    def failed(self, what: str, error: BaseException) -> None:
        """Remark about something that broke while the rest goes on. Raises where the device is
        broken too: a CUDA error stays with its process."""
        self.remark(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        self.sync()

    def sync(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def bound(self, moved: float, operations: float = 0.0) -> float:
        """Least seconds to move bytes and do operations, 0 where the ceilings are unknown."""
        if not self.copy or not self.product:
            return 0.0
        return max(moved / self.copy, operations / self.product)

    def random(self, *size: int, scale: float = 1.0) -> Tensor:
        """Normal values. Zeros can be faster than data."""
        made = torch.randn(*size, device=self.device, dtype=torch.float32) * scale
        return made.to(self.dtype)


def share(bound: float, seconds: float) -> str | None:
    """Bound over time in percent, None where either is unknown."""
    return f"{bound / seconds:.0%}" if bound and seconds else None
