"""PrefixStore: engines that hold prefixes of prompts, by the prefix's hash at variable boundaries.

This is Parrot's key-value store (section 5.3). A boundary is looked up in constant time; comparing
tokens would cost the prompt's length. An entry may be wrong, if the engine has evicted the prefix.
The engine then computes the prefix again, and the entry is right again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from sglang.srt.core.call_hints import PrefixHash

ENTRIES = 100_000  # most boundaries in the store; the least recently used are dropped
BOUNDARIES = 256  # most boundaries of a prompt that are used; the longest prefixes


class PrefixStore:
    """Names of engines by the digest of a prefix.

    Args:
        entries: most digests.
    """

    def __init__(self, entries: int = ENTRIES) -> None:
        self._entries = entries
        self._holders: OrderedDict[int, set[str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, prefixes: Sequence[PrefixHash], engine: str) -> None:
        """Record that an engine has the prefixes, or will have them soon."""
        for prefix in prefixes[-BOUNDARIES:]:
            self._holders.setdefault(prefix.digest, set()).add(engine)
            self._holders.move_to_end(prefix.digest)
        while len(self._holders) > self._entries:
            self._holders.popitem(last=False)

    def discard(self, prefixes: Iterable[PrefixHash], engine: str) -> None:
        """Record that an engine does not have the prefixes."""
        for prefix in prefixes:
            holders = self._holders.get(prefix.digest)
            if holders is not None:
                holders.discard(engine)
                if not holders:
                    del self._holders[prefix.digest]

    def forget(self, engine: str) -> None:
        """Record that an engine is gone. Linear in the number of entries."""
        for digest, holders in list(self._holders.items()):
            holders.discard(engine)
            if not holders:
                del self._holders[digest]

    def held(self, prefixes: Sequence[PrefixHash]) -> dict[str, int]:
        """Return by engine the number of tokens of the longest prefix that the engine holds."""
        found: dict[str, int] = {}
        for prefix in prefixes[-BOUNDARIES:]:
            for engine in self._holders.get(prefix.digest, ()):
                found[engine] = max(found.get(engine, 0), prefix.tokens)
        return found
