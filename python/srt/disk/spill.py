"""Spill: copies KV that only the device has to host memory while the engine is idle.

A device with free pages evicts nothing, so host memory and the disk would lack the KV computed
last. While the engine is idle, passes without rows copy such KV, the most recently used first.
"""

from __future__ import annotations

from operator import attrgetter

from sglang.srt.core.namespace import Namespace
from sglang.srt.disk.disk_tier import kept
from sglang.srt.memory.host_tier import HostTier
from sglang.srt.memory.radix import RadixTree
from sglang.srt.memory.radix_node import RadixNode

_used = attrgetter("used")


class Spill:
    """Leaves of the device's tree that must be copied to host memory."""

    def __init__(self, device: RadixTree, host: HostTier) -> None:
        self._device, self._host = device, host
        self._leaves: list[RadixNode] = []  # most recently used last
        self._version = -1  # version of the device's tree at the last look
        self._seen = 0  # leaves with ``used`` up to this need no copy any more
        self._looked = 0  # greatest ``used`` of the leaves of the last look
        self._room = 0  # number of pages that may be copied until the next look

    @property
    def owed(self) -> bool:
        """Whether leaves must be copied and nothing was computed since the last look."""
        return bool(self._leaves) and self._device.version == self._version

    def look(self) -> None:
        """Find the leaves without a whole copy in host memory among those used since the last look
        that was completed. Call only while nothing is computed."""
        if self._device.version == self._version:
            return
        if not self._leaves:
            self._seen = self._looked
        self._version, self._room = self._device.version, self._host.tree.pool.size // 2
        found = [n for n in self._device.nodes() if n.used > self._seen and not n.children]
        self._leaves = sorted((n for n in found if self._lacks(n)), key=_used)
        self._looked = max((n.used for n in found), default=self._seen)

    def save(self, most: int) -> int:
        """Plan copies of at most ``most`` pages. Return their number. The planned pass must have no
        rows, so that earlier passes have computed all KV in the tree."""
        saved = 0
        if self._device.version != self._version:  # something was computed since
            return 0
        if most < 1:
            self._leaves.clear()
        while self._leaves and saved < min(most, self._room):
            node = self._leaves[-1]
            tokens, pages = self._device.path(node)
            tokens = kept(tokens, self._device.namespace(node), self._device.page_size)
            count = self._host.save(
                tokens,
                pages[: len(tokens) // self._device.page_size],
                self._device.namespace(node),
                min(most, self._room) - saved,
            )
            saved += count
            if count == 0 or not self._lacks(node):
                self._leaves.pop()
        self._room -= saved
        if self._room <= 0:
            self._leaves.clear()
        return saved

    def _lacks(self, node: RadixNode) -> bool:
        """Return whether host memory lacks KV of the path to a leaf that the disk may keep."""
        namespace: Namespace = self._device.namespace(node)
        tokens = kept(self._device.path(node)[0], namespace, self._device.page_size)
        return self._host.match(tokens, len(tokens), namespace) < len(tokens)
