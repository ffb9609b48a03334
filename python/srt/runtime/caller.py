"""Caller: who sent the request being answered. The guard sets it, everything may read it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

SHARED = "\0"  # the namespace of tenants who share a cache


def _free(tokens: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Caller:
    """One HTTP request's sender.

    Attributes:
        request: the request's id, the client's own (X-Request-Id) or one made here.
        tenant: name of the key it came with; "" where the server knows one key or none.
        admin: it may see and end what belongs to others, and change the server.
        namespace: stands before its every ``cache_salt``, so that tenants meet no KV of each other.
        priority: added to what the request asks for.
        charge: told of every token read or written for it.
    """

    request: str = ""
    tenant: str = ""
    admin: bool = True
    namespace: str = ""
    priority: int = 0
    charge: Callable[[int], None] = _free


ANYBODY = Caller()

current: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)
