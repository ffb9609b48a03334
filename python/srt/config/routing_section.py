"""The section of a Config that says how requests are shared out among engines."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.config.sections import flag

ROUTING_POLICIES = (
    "predicted", "cache-aware", "least-load", "round-robin", "random", "affinity", "product",
    "application",
)  # fmt: skip


@dataclass(frozen=True)
class RoutingConfig:
    """The choice of an engine, where there are several (--dp-size, --engines)."""

    engines: tuple[str, ...] = flag(
        (),
        "tcp://HOST:PORT of separate engines (sglang engine) to use in place of own ones",
    )
    engine_keys: str = flag("", "file front.key of --engines, from sglang engine-keys")
    routing_policy: str = flag(
        "predicted", "choice of a request's engine; predicted: the earliest expected first token, "
        "by cached prefix and queue; application: by program, its task groups, latency and "
        "prefixes (Parrot)", choices=ROUTING_POLICIES,
    )  # fmt: skip
    shared_engines: bool = flag(
        False, "other servers use the same --engines: all send a new prompt to the same engine"
    )
    slow_engine_factor: float = flag(
        5.0, "pause an engine whose first tokens take this many times as long as the others'; "
        "at most a third of the engines at once; 0: never", type=float,
    )  # fmt: skip

    def verify(self) -> None:
        """Raise ValueError for a value out of range."""
        if len(set(self.engines)) < len(self.engines):
            raise ValueError(f"--engines names an engine twice: {' '.join(self.engines)}")
        if self.engine_keys and not self.engines:
            raise ValueError(
                f"--engine-keys is {self.engine_keys!r} and there are no --engines to use it for"
            )
        if self.shared_engines and not self.engines:
            raise ValueError(
                "--shared-engines is given and there are no --engines that others could use"
            )
        if self.slow_engine_factor and not 1.5 <= self.slow_engine_factor <= 1000:
            raise ValueError(
                f"--slow-engine-factor is {self.slow_engine_factor:g}; it must be from 1.5 to "
                "1000, or 0 for no such rule"
            )
