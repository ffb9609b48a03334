"""Rights and limits of a program: what it may reach, and how much of it."""

from __future__ import annotations

import msgspec


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """Rights beside computing. None by default.

    Attributes:
        owner: tenant, which topics, stores and exports belong to.
        store: it may use the key-value store.
        topics: it may broadcast and subscribe.
        hosts: hosts of HTTP requests, at public addresses; ("*",): any.
        local: "host:port" of HTTP requests that may be at an address that is not public.
    """

    owner: str = ""
    store: bool = False
    topics: bool = False
    hosts: tuple[str, ...] = ()
    local: tuple[str, ...] = ()


class ProgramLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Most that a program may use.

    Attributes:
        pages: of the KV cache at a time; 0: the engine's share.
        queues: at a time.
        calls: of one turn.
        waiting: calls without an answer at a time.
        http_bytes: of one answer to an HTTP request.
        http_seconds: of one HTTP request.
        log_bytes: of all lines of the log.
    """

    pages: int = 0
    queues: int = 256
    calls: int = 100_000
    waiting: int = 100_000
    http_bytes: int = 4 << 20
    http_seconds: float = 30.0
    log_bytes: int = 1 << 20


TRUSTED = Rights(store=True, topics=True, hosts=("*",))
