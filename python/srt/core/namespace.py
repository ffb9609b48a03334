"""Namespace: the contexts that may share KV. Contexts of different namespaces share none."""

from __future__ import annotations

from typing import NamedTuple


class Namespace(NamedTuple):
    """Key of the KV that contexts may share: contexts share KV only if both attributes are equal.

    Attributes:
        salt: the client's ``cache_salt``, behind a prefix added by the server.
        adapter: number of the adapter that has computed the KV; 0: none. Each loading of an adapter
            has its own number, so an adapter loaded again under an old name does not match KV of
            the earlier one.
    """

    salt: str = ""
    adapter: int = 0


BASE = Namespace()
