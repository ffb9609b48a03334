"""Fields: a record of 64-bit numbers, as which native code takes what has many parts."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np


def bits(value: float) -> int:
    """The float64 as the integer of the same bits: how a record of integers carries one."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


class Fields:
    """A record of 64-bit fields for the native side, and what its addresses point into."""

    def __init__(self, values: Sequence[int | None], *owners: object) -> None:
        self.array = np.array([value or 0 for value in values], dtype=np.int64)
        self.address = int(self.array.__array_interface__["data"][0])
        self.owners = owners
