"""MaskRow: the tokens that one state allows. MaskCache: LRU cache of rows by key."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Hashable

NARROW = 64  # limit of the tokens of a row that is a list of ids; larger rows are bits
_OVERHEAD = 200  # approximate bytes of a row and its cache entry


class MaskRow:
    """Allowed tokens of one state.

    Attributes:
        ids: the allowed tokens without end tokens, ascending, if at most NARROW; else None.
        bits: the mask, end tokens included, for more than NARROW tokens; else b"".
        ending: end tokens are allowed.
    """

    __slots__ = ("bits", "ending", "ids")

    def __init__(self, ids: tuple[int, ...] | None, bits: bytes, ending: bool) -> None:
        self.ids, self.bits, self.ending = ids, bits, ending

    def allows(self, token: int) -> bool:
        """Return True if a token, not an end token, is allowed."""
        if self.ids is not None:
            return token in self.ids
        return bool(self.bits[token >> 3] >> (token & 7) & 1)

    def mask(self, words: int, eos: tuple[int, ...]) -> bytes:
        """Return the row as a mask of ``words`` int32 words. ``eos``: the end tokens."""
        if self.ids is None:
            return self.bits
        data = bytearray(4 * words)
        for token in self.ids:
            data[token >> 3] |= 1 << (token & 7)
        if self.ending:
            for token in eos:
                data[token >> 3] |= 1 << (token & 7)
        return bytes(data)

    def sole(self, eos: int) -> int | None:
        """Return the only allowed token, None for several. ``eos``: number of end tokens."""
        if self.ids is None or len(self.ids) != 1 or (self.ending and eos):
            return None
        return self.ids[0]

    @property
    def nbytes(self) -> int:
        return _OVERHEAD + len(self.bits) + 8 * len(self.ids or ())


class MaskCache:
    """LRU cache of rows by key, of at most ``limit`` bytes. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._rows: OrderedDict[Hashable, MaskRow] = OrderedDict()
        self._lock = threading.Lock()
        self._owners = itertools.count()

    def owner(self) -> int:
        """Return a new number, for use in the keys of one grammar."""
        return next(self._owners)

    def get(self, key: Hashable) -> MaskRow | None:
        with self._lock:
            row = self._rows.get(key)
            if row is not None:
                self._rows.move_to_end(key)
            return row

    def put(self, key: Hashable, row: MaskRow) -> MaskRow:
        with self._lock:
            old = self._rows.pop(key, None)
            self._rows[key] = row
            self.nbytes += row.nbytes - (old.nbytes if old else 0)
            while self.nbytes > self.limit and len(self._rows) > 1:
                self.nbytes -= self._rows.popitem(last=False)[1].nbytes
        return row
