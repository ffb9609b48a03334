"""HTTP requests of programs, by the guards of ``requests/media_input/fetch``.

A program reaches the hosts that its rights name, at public addresses alone. An address that is not
public is reached where the rights name its host and port. A redirect is not followed: it is the
answer.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from sglang.srt.core.version import __version__
from sglang.srt.inferlet.program_limits import ProgramLimits, Rights
from sglang.srt.requests.media_input.fetch import CHUNK, PinnedConnection, resolved, verified
from sglang.srt.requests.media_input.name_lookups import LookupsBusy, NameLookups

# Requests that wait for slow hosts delay one another, and no other work of the server's threads.
THREADS, SHARE = 128, 32  # of all tenants, and those that one may have at a time
_THREADS = ThreadPoolExecutor(THREADS, "srt-inferlet-http")
_LOOKUPS = NameLookups(THREADS, SHARE)  # a slow one goes on when its request has ended


class Outbound:
    """The requests of all programs of an event loop. One tenant's, which may all wait for a slow
    host, leave threads to another's."""

    def __init__(self) -> None:
        self._shares: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(SHARE)
        )

    async def fetched(
        self, url: str, body: str | None, rights: Rights, limits: ProgramLimits
    ) -> str:
        """``request`` in a thread of programs' requests. Where it is cancelled, its thread counts
        until it is free."""
        loop, share = asyncio.get_running_loop(), self._shares[rights.owner]
        await share.acquire()

        def release(_: Future[str]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(share.release)

        work = _THREADS.submit(request, url, body, rights, limits)
        work.add_done_callback(release)
        return await asyncio.wrap_future(work)


def request(url: str, body: str | None, rights: Rights, limits: ProgramLimits) -> str:
    """The text of the answer to a GET, or with ``body`` to a POST. Waits for the network.

    Raises PermissionError where the rights do not allow it, ValueError where the answer is no text
    of a success or is too large, OSError where there is none.
    """
    parts = verified(url, ())
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    deadline = time.monotonic() + limits.http_seconds
    try:
        address = _address(host, port, rights, deadline)
    except LookupsBusy as error:
        raise ValueError(
            f"{host[:80]!r} waited longer than {limits.http_seconds:g} s for other lookups of names"
        ) from error
    except TimeoutError as error:
        raise ValueError(
            f"the lookup of {host[:80]!r} took longer than {limits.http_seconds:g} s"
        ) from error
    connection = PinnedConnection(host, port, address, secure, deadline)
    headers = {
        "Host": parts.netloc, "User-Agent": f"sglang/{__version__}", "Accept": "*/*",
        "Accept-Encoding": "identity", "Connection": "close",
    }  # fmt: skip
    data = None
    if body is not None:
        data = body.encode()
        headers["Content-Type"] = "application/json" if body[:1] in "{[" else "text/plain"
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    try:
        connection.request("POST" if data is not None else "GET", target, data, headers)
        answer = connection.getresponse()
        found = _read(connection, answer, limits.http_bytes)
    except TimeoutError as error:
        raise ValueError(f"{host} took longer than {limits.http_seconds:g} s") from error
    except http.client.HTTPException as error:
        raise ValueError(f"{host} gave no answer of HTTP: {type(error).__name__}") from error
    finally:
        connection.end()
    if not 200 <= answer.status < 300:
        raise ValueError(f"{host} answers {answer.status}: {found[:200].decode(errors='replace')}")
    return found.decode(errors="replace")


def _address(host: str, port: int, rights: Rights, deadline: float) -> str:
    if f"{host}:{port}" in rights.local:
        return host
    if "*" not in rights.hosts and host.rstrip(".") not in rights.hosts:
        raise PermissionError(f"this program lacks the right to reach {host[:80]!r}")
    try:
        return resolved(host, port, deadline, _LOOKUPS, rights.owner)
    except ValueError as error:
        raise PermissionError(
            f"{host[:80]!r} is at an address that is not public; its operator may name "
            f"'{host[:80]}:{port}' among local ones"
        ) from error


def _read(connection: PinnedConnection, answer: http.client.HTTPResponse, most: int) -> bytes:
    found = bytearray()
    while True:
        some = answer.read1(CHUNK)
        connection.hurry()
        if not some:
            return bytes(found)
        found += some
        if len(found) > most:
            raise ValueError(f"the answer has more than {most} bytes")
