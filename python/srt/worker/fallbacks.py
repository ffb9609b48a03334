"""Fallbacks: what failed at the start, and what runs in its place."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from sglang.srt.core.device_errors import DeviceLost, lost_device

log = logging.getLogger("sglang.srt.worker")
ADVICE = "start with --disable-cuda-graph, --disable-fused-kernels or --attention-backend native"


@dataclass
class Fallbacks:
    """Failures of this start, so far."""

    lines: list[str] = field(default_factory=list)

    def note(self, what: str, error: Exception, instead: str) -> None:
        """Log the failure. Raises DeviceLost where nothing else can be tried."""
        if lost_device(error):
            raise DeviceLost(f"{what} failed, and the GPU with it: {short_text(error)}; {ADVICE}.")
        self.lines.append(f"{what} failed ({short_text(error)}); {instead}")
        log.warning("%s", self.lines[-1])
        log.debug("%s failed", what, exc_info=error)


def short_text(error: Exception) -> str:
    """The error in one short line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]:.200}"
