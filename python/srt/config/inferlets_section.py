"""The section of a Config about programs that clients upload."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.config.sections import flag

_BOUNDS = {"threads": (1, 64), "max_runs": (1, 100_000), "max_programs": (1, 100_000)}


@dataclass(frozen=True)
class InferletsConfig:
    """Programs that clients upload, which run in a sandbox beside the model."""

    enable_inferlets: bool = flag(
        False, "clients may upload programs and run them in a sandbox; needs the extra [inferlet]"
    )
    inferlet_threads: int = flag(2, "threads that run the turns of all programs", type=int)
    inferlet_memory: float = flag(4.0, "GB that all programs in the sandbox may use", type=float)
    inferlet_max_runs: int = flag(256, "runs that a tenant may have at a time", type=int)
    inferlet_max_programs: int = flag(64, "programs that a tenant may have uploaded", type=int)

    def verify(self) -> None:
        """Raise ValueError for a value out of range."""
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, f"inferlet_{name}")
            if not least <= value <= most:
                raise ValueError(
                    f"--inferlet-{name.replace('_', '-')} is {value}; it must be from {least} to "
                    f"{most}"
                )
        if not 0.1 <= self.inferlet_memory <= 100_000:
            raise ValueError(
                f"--inferlet-memory is {self.inferlet_memory:g}; it must be from 0.1 to 100000"
            )
