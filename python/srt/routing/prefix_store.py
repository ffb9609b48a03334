"""PrefixStore: engines that hold the beginnings of prompts, by hash at variable boundaries.

Parrot's key-value store (section 5.3): a boundary is looked up in constant time, where comparing
tokens would cost the prompt's length. An entry is a belief: a prefix that an engine has evicted
since is computed there once more, and then it is true again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from sglang.srt.core.call_hints import PrefixHash

ENTRIES = 100_000  # most boundaries that are remembered; the last used ones
BOUNDARIES = 256  # most boundaries of a prompt that are looked at, the longest


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
        """Note that an engine has the prefixes, or will have them soon."""
        for prefix in prefixes[-BOUNDARIES:]:
            self._holders.setdefault(prefix.digest, set()).add(engine)
            self._holders.move_to_end(prefix.digest)
        while len(self._holders) > self._entries:
            self._holders.popitem(last=False)

    def discard(self, prefixes: Iterable[PrefixHash], engine: str) -> None:
        """Note that an engine does not have the prefixes."""
        for prefix in prefixes:
            holders = self._holders.get(prefix.digest)
            if holders is not None:
                holders.discard(engine)
                if not holders:
                    del self._holders[prefix.digest]

    def forget(self, engine: str) -> None:
        """Note that an engine is gone. Linear in the entries."""
        for digest, holders in list(self._holders.items()):
            holders.discard(engine)
            if not holders:
                del self._holders[digest]

    def held(self, prefixes: Sequence[PrefixHash]) -> dict[str, int]:
        """Return the tokens of the longest prefix that each engine holds, by engine."""
        found: dict[str, int] = {}
        for prefix in prefixes[-BOUNDARIES:]:
            for engine in self._holders.get(prefix.digest, ()):
                found[engine] = max(found.get(engine, 0), prefix.tokens)
        return found
