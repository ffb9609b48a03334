"""Bytes that a tenant's programs may keep."""

from __future__ import annotations

import pytest
from sglang.srt.inferlet.program_store import ENTRY, ProgramStore


def test_a_store_counts_keys_values_and_entries() -> None:
    store = ProgramStore(3 * ENTRY + 6)
    for key in ("a", "é", ""):
        store.set("ann", key, b"1")
    with pytest.raises(ValueError, match="delete some"):
        store.set("ann", "b", b"")
    with pytest.raises(ValueError, match="delete some"):
        store.set("ann", "a", b"12")
    store.set("bob", "b", b"1")
    store.delete("ann", "é")
    store.delete("ann", "é")
    store.set("ann", "a", b"1" * 3)
    store.set("ann", "b", b"")
    assert store.keys("ann", "") == ["", "a", "b"]
