"""The section of a Config that bounds the programs whose graphs are sent whole."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.config.sections import flag


@dataclass(frozen=True)
class ApplicationsConfig:
    """Programs that clients submit to ``/v1/submit``, and the values between their calls."""

    max_program_sessions: int = flag(1024, "open program sessions of one API key", type=int)
    max_program_steps: int = flag(4096, "steps and streams of one submitted graph", type=int)
    max_program_variables: int = flag(
        65536, "semantic variables in the open sessions of one API key", type=int
    )
    max_program_value_bytes: int = flag(
        64 << 20, "bytes of the server's memory for program values and events of one API key",
        type=int,
    )  # fmt: skip
    program_session_timeout: float = flag(
        600.0, "seconds without a request after which a session of programs is closed", type=float
    )
    program_ahead_chars: int = flag(
        256, "characters of new prompt text after which a call that waits for a value is "
        "precomputed; 0: it is computed when the call begins", type=int,
    )  # fmt: skip

    def verify(self) -> None:
        """Raise ValueError for a value out of range."""
        for name in ("sessions", "steps", "variables", "value_bytes"):
            value = getattr(self, f"max_program_{name}")
            if value < 1:
                flag_name = name.replace("_", "-")
                raise ValueError(f"--max-program-{flag_name} is {value}; it must be at least 1")
        if not 0 < self.program_session_timeout <= 7 * 86400:
            raise ValueError(
                f"--program-session-timeout is {self.program_session_timeout}; it must be above 0, "
                "at most 604800"
            )
        if self.program_ahead_chars < 0:
            raise ValueError(
                f"--program-ahead-chars is {self.program_ahead_chars}; it must be at least 0"
            )
