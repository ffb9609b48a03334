"""ApplicationMemory: what the policy ``application`` knows of earlier calls."""

from __future__ import annotations

from collections.abc import Sequence

from sglang.srt.core.call_hints import PrefixHash
from sglang.srt.routing.prefix_store import PrefixStore

LATENCY_SHARE = 0.3  # the paper's engine: 0.03 to 0.1; those of today: up to 1


class ApplicationMemory:
    """Engines of prefixes.

    Attributes:
        store: engines that hold prefixes.
        latency_share: part of its tokens that an engine holds while a latency-sensitive call runs
            there.
    """

    def __init__(self, latency_share: float = LATENCY_SHARE) -> None:
        self.store, self.latency_share = PrefixStore(), latency_share

    def failed(self, prefixes: Sequence[PrefixHash], engine: str) -> None:
        """Note that a call has ended before its prompt was computed."""
        self.store.discard(prefixes, engine)

    def forget(self, engine: str) -> None:
        """Note that an engine is gone, or has begun anew. Linear in the prefixes."""
        self.store.forget(engine)
