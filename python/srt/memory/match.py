"""Match: the cached prefix of a context."""

from __future__ import annotations

from typing import NamedTuple


class Match(NamedTuple):
    """Cached prefix of a context.

    Attributes:
        tokens: number of tokens with KV on the device.
        pins: number of pages that a lock would make unevictable.
        path: numbers of the radix nodes from the root on.
        host: number of tokens after these with KV in host memory.
    """

    tokens: int
    pins: int
    path: tuple[int, ...]
    host: int = 0
