"""Fallbacks: the parts that failed at the start, and their replacements."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from sglang.srt.core.device_errors import DeviceLost, lost_device

log = logging.getLogger("sglang.srt.worker")
ADVICE = "start with --disable-cuda-graph, --disable-fused-kernels or --attention-backend native"


@dataclass
class Fallbacks:
    """Failures of this start. ``lines``: one a failure, with the replacement that is used."""

    lines: list[str] = field(default_factory=list)

    def note(self, what: str, error: Exception, instead: str) -> None:
        """Log a failure and its replacement. Raises DeviceLost if the error lost the GPU."""
        if lost_device(error):
            raise DeviceLost(f"{what} failed, and the GPU with it: {short_text(error)}; {ADVICE}.")
        self.lines.append(f"{what} failed ({short_text(error)}); {instead}")
        log.warning("%s", self.lines[-1])
        log.debug("%s failed", what, exc_info=error)


def short_text(error: Exception) -> str:
    """Return the type of an error and the first 200 characters of its first line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]:.200}"
