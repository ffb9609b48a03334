"""Caller: the sender of a request, its rights and its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

SHARED = "\0"  # the namespace of tenants that share a cache


class RequestSlot:
    """One of the simultaneous requests that a key may have. The answer is its first holder; work
    that continues without its client holds the slot too.

    Args:
        leave: called once the last holder has released the slot.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave, self._holders = leave, 1

    def hold(self) -> None:
        """Add a holder; each holder calls ``release`` once."""
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._leave()


class InferletGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rights of a key whose holder may upload and run inferlets. Other rights are denied.

    Attributes:
        store: programs may use the tenant's key-value store.
        topics: programs may broadcast to, and subscribe to, the tenant's topics.
        hosts: hosts that programs may send HTTP requests to, at public addresses; ("*",): any.
    """

    store: bool = False
    topics: bool = False
    hosts: tuple[str, ...] = ()


COMPUTING = InferletGrant()  # a program may compute, and call the model, and no more


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of one request.

    Attributes:
        request: the request's id, the client's own (X-Request-Id) or a new one.
        tenant: name of its API key; "" where the server knows one key or none.
        admin: the caller may see and end requests of others, and change the server.
        namespace: prefix of every ``cache_salt`` of the caller; tenants then share no KV.
        priority: added to the request's own priority.
        charge: called with numbers of tokens as they are read or generated for the caller; None if
            the caller's tokens are not counted.
        slot: slot of the request; None if the caller's requests are not counted.
        grant: rights of the caller's inferlets; None: the caller may run none.
    """

    request: str = ""
    tenant: str = ""
    admin: bool = True
    namespace: str = ""
    priority: int = 0
    charge: Callable[[int], None] | None = None
    slot: RequestSlot | None = None
    grant: InferletGrant | None = COMPUTING


ANYBODY = Caller()
"""The caller of ``sglang.Engine`` and of a server without keys."""
