"""Caller: the sender of a request, as far as the runtime needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

SHARED = "\0"  # the namespace of tenants that share a cache


class RequestSlot:
    """One of the requests at once that a key may have. Its first holder is the answer; work that
    goes on without its client is another one.

    Args:
        leave: called once the last holder has released it.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave, self._holders = leave, 1

    def hold(self) -> None:
        """Add a holder; each one calls ``release`` once."""
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._leave()


class InferletGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rights of a key whose holder may upload and run inferlets. What is not granted is denied.

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
        admin: it may see and end what belongs to others, and change the server.
        namespace: prefix of its every ``cache_salt``, so that tenants reuse no KV of each other.
        priority: added to the request's own.
        charge: called with the number of tokens read or generated for it, as they come; None where
            its tokens are not counted.
        slot: of its request; None where its requests are not counted.
        grant: what its programs in the sandbox may do; None: it may run none.
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
"""The caller in this process, and of a server without keys."""
