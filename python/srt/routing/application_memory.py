"""ApplicationMemory: the facts about earlier calls that the policy ``application`` uses."""

from __future__ import annotations

from collections.abc import Sequence

from sglang.srt.core.call_hints import PrefixHash
from sglang.srt.routing.prefix_store import PrefixStore

LATENCY_SHARE = 0.3  # on the engine of the Parrot paper: 0.03 to 0.1; on current engines: up to 1


class ApplicationMemory:
    """The engines that hold prefixes of calls.

    Attributes:
        store: engines by the hash of a prefix.
        latency_share: part of its token capacity that an engine may use while it runs a
            latency-sensitive call.
    """

    def __init__(self, latency_share: float = LATENCY_SHARE) -> None:
        self.store, self.latency_share = PrefixStore(), latency_share

    def failed(self, prefixes: Sequence[PrefixHash], engine: str) -> None:
        """Record that a call has ended before its prompt was computed."""
        self.store.discard(prefixes, engine)

    def forget(self, engine: str) -> None:
        """Record that an engine is gone or was restarted. Linear in the number of prefixes."""
        self.store.forget(engine)
