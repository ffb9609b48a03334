"""WorkingSet: size of the KV of several contexts, shared KV counted once.

A context is a list of digests, one per full block. A block's digest covers all tokens up to its
end, so two contexts have a block in common exactly if they are equal up to the block's end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

from sglang.srt.core.ints import Ints

Context: TypeAlias = Sequence[bytes]
DIGEST_BYTES = 12


def context_of(tokens: Ints, block: int, namespace: str = "") -> Context:
    """Return the digests of the full blocks of ``block`` tokens each.

    Args:
        namespace: contexts of different namespaces get different digests.
    """
    state = blake2b(namespace.encode("utf-8", "surrogatepass") + b"\0", digest_size=DIGEST_BYTES)
    data, found = memoryview(tokens).cast("B"), []
    size = block * tokens.itemsize
    for start in range(0, len(data) - size + 1, size):
        state.update(data[start : start + size])
        found.append(state.digest())
    return found


class WorkingSet:
    """The contexts of holders (programs). A holder has a number and one context.

    Attributes:
        shared: number of blocks that several holders have.
    """

    def __init__(self) -> None:
        # By block: the number of its holders, and the sum of the holders' numbers. With one holder
        # the sum is its number.
        self._blocks: dict[bytes, tuple[int, int]] = {}
        self._contexts: dict[int, Context] = {}
        self._own: dict[int, int] = {}
        self.shared = 0

    def own(self, holder: int) -> int:
        """Return the number of a holder's blocks that no other holder has."""
        return self._own[holder]

    def hold(self, holder: int, context: Context) -> None:
        """Set the context of a holder, replacing its earlier context."""
        before = self._contexts.get(holder, ())
        self._own.setdefault(holder, 0)
        self._contexts[holder] = context
        common = 0
        while common < min(len(before), len(context)) and before[common] == context[common]:
            common += 1
        for block in context[common:]:
            self._add(block, holder)
        for block in before[common:]:
            self._remove(block, holder)

    def drop(self, holder: int) -> None:
        """Forget a holder."""
        self.hold(holder, ())
        del self._contexts[holder], self._own[holder]

    def met(self, context: Context) -> tuple[int, Counter[int]]:
        """Compare a context with those of the holders. Return how many of its blocks no holder has;
        and by holder, how many of its blocks only this holder has."""
        fresh, alone = len(context), Counter[int]()
        for block in context:
            found = self._blocks.get(block)
            if found is None:
                break  # Blocks after an unknown one are unknown.
            fresh -= 1
            if found[0] == 1:
                alone[found[1]] += 1
        return fresh, alone

    def _add(self, block: bytes, holder: int) -> None:
        count, total = self._blocks.get(block, (0, 0))
        self._blocks[block] = count + 1, total + holder
        if count == 0:
            self._own[holder] += 1
        elif count == 1:
            self._own[total] -= 1
            self.shared += 1

    def _remove(self, block: bytes, holder: int) -> None:
        count, total = self._blocks[block]
        if count == 1:
            del self._blocks[block]
            self._own[holder] -= 1
            return
        self._blocks[block] = count - 1, total - holder
        if count == 2:
            self._own[total - holder] += 1
            self.shared -= 1

    def check(self) -> None:
        """Raise AssertionError if the counts do not match the contexts."""
        holders = Counter(block for context in self._contexts.values() for block in context)
        assert {block: count for block, (count, _) in self._blocks.items()} == dict(holders)
        assert self.shared == sum(count > 1 for count in holders.values())
        for holder, context in self._contexts.items():
            assert self._own[holder] == sum(holders[block] == 1 for block in context), holder
