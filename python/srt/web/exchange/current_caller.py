"""The caller of the HTTP request being answered: set by the guard, read by the handlers.

This is a context variable, because errors at every depth carry the request's id. Code below HTTP
does not read it: the runtime gets the caller as an argument.
"""

from __future__ import annotations

from contextvars import ContextVar

from sglang.srt.runtime.caller import ANYBODY, Caller

CALLER: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)
