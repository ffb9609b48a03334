"""Namespace: the contexts that may share KV. Contexts of different namespaces share none."""

from __future__ import annotations

from typing import NamedTuple


class Namespace(NamedTuple):
    """Properties that a context's KV depends on besides its tokens, or is kept apart by.

    Attributes:
        salt: chosen by the client (``cache_salt``), after what the server puts before it.
        adapter: number of the adapter that has computed the KV, 0 for none. The engine gives every
            loading a number of its own: neither a salt nor an adapter loaded again under an old
            name leads to another's KV.
    """

    salt: str = ""
    adapter: int = 0


BASE = Namespace()
