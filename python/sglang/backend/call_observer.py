"""Call observer: interface by which a backend reports each request that it sends for a call."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol


class CallObserver(Protocol):
    """The record of one call in flight.

    Attributes:
        answer: the answer to the latest request; the backend sets it.
    """

    answer: Any

    @property
    def traceparent(self) -> str:
        """W3C header that makes the server's spans children of the latest request's, or ""."""

    def request(self) -> AbstractContextManager[CallObserver]:
        """Record the single request that is made inside the context."""


# Observer of the call that the current thread or task makes; None if it is not recorded.
OBSERVER: ContextVar[CallObserver | None] = ContextVar("call_observer", default=None)
