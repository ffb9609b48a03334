"""Call observer: how a backend that sends several requests for one call reports each of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol


class CallObserver(Protocol):
    """The record of one call while it is made.

    Attributes:
        answer: the answer to the latest request; the backend sets it.
    """

    answer: Any

    @property
    def traceparent(self) -> str:
        """W3C header that makes the server's spans children of the latest request's, or ""."""

    def request(self) -> AbstractContextManager[CallObserver]:
        """Record the one request that is made inside."""


# Observer of the call that the current thread or task makes; None where it is not recorded.
OBSERVER: ContextVar[CallObserver | None] = ContextVar("call_observer", default=None)
