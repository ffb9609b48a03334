"""The section of a Config that says when programs wait for memory."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.config.sections import flag


@dataclass(frozen=True)
class ProgramGateConfig:
    """The gate that keeps the working set of programs within the KV memory."""

    program_gate: float = flag(
        0.0, "admit programs only while the KV of all admitted ones is within this share of the "
        "KV memory (device and host); 0: no gate", type=float,
    )  # fmt: skip
    program_gate_quantum: float = flag(
        20.0,
        "seconds after which a program leaves at its next tool call if others wait",
        type=float,
    )
    program_gate_half_life: float = flag(
        2.0, "seconds of a tool call in which the program's weight halves", type=float
    )

    def verify(self) -> None:
        """Raise ValueError for a value out of range."""
        if not 0 <= self.program_gate <= 10:
            raise ValueError(
                f"--program-gate is {self.program_gate}; it must be from 0, for no gate, to 10"
            )
        for name in ("quantum", "half_life"):
            value = getattr(self, f"program_gate_{name}")
            if not 0 < value <= 86400:
                flag_name = name.replace("_", "-")
                raise ValueError(
                    f"--program-gate-{flag_name} is {value}; it must be above 0, at most 86400"
                )
