"""NameLookups: a name server that is silent holds up neither a fetch nor other owners' lookups."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.config.sections import MediaConfig
from sglang.srt.requests.media_input import fetch as fetching
from sglang.srt.requests.media_input.fetch import Fetch, fetch
from sglang.srt.requests.media_input.media_loading import SHARE, Viewer
from sglang.srt.requests.media_input.name_lookups import NameLookups
from sglang.srt.requests.media_input.sources import MediaSource
from sglang.srt.requests.request_error import RequestError

PUBLIC = "93.184.216.34"


class Resolver:
    """Answers at once, but for names that begin with "slow", which wait for ``end``."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.slow: list[str] = []  # names that have been answered slowly

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        if host.startswith("slow"):
            self.end.wait(10)
            self.slow.append(host)
        if host.startswith("none"):
            raise socket.gaierror("no such name")
        return [(0, 0, 0, "", (PUBLIC, port))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    yield made
    made.end.set()


def soon() -> float:
    return time.monotonic() + 0.1


def later() -> float:
    return time.monotonic() + 60


def viewer_of(seconds: float) -> Viewer:
    """One whose fetches may take so long."""
    processor: Any = SimpleNamespace(image_token=SimpleNamespace(id=1), max_frames=1)
    config = MediaConfig(allow_remote_media=True, media_fetch_timeout=seconds)
    return Viewer(processor, config, 9)


async def refused(viewer: Viewer, host: str) -> str:
    """The message with which an image of a host is refused."""
    with pytest.raises(RequestError) as error:
        await viewer.read([MediaSource("image", f"http://{host}/", "image_data")])
    return error.value.message


def test_a_fetch_ends_before_its_slow_lookup(resolver: Resolver) -> None:
    with pytest.raises(ValueError, match="--media-fetch-timeout"):
        fetch("http://slow.example/", Fetch((), 1000, 0.1))
    assert resolver.slow == []


def test_slow_lookups_leave_threads_to_other_fetches(resolver: Resolver) -> None:
    viewer = viewer_of(1.0)

    async def main() -> None:
        slow = (refused(viewer, f"slow{n}.example") for n in range(SHARE))
        assert all("--media-fetch-timeout" in message for message in await asyncio.gather(*slow))
        assert "no such name" in await refused(viewer, "none.example")

    asyncio.run(main())
    assert resolver.slow == []


@pytest.mark.usefixtures("resolver")
def test_a_fetch_that_waited_for_lookups_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching._LOOKUPS, "_most", 0)
    message = asyncio.run(refused(viewer_of(0.1), "a.example"))
    assert "'a.example' waited too long for other lookups of names" in message


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("host", [PUBLIC, "[2606:4700::1]"])
def test_an_address_needs_no_lookup(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    reached = list[str]()

    def reach(address: tuple[str, int], left: float) -> socket.socket:
        reached.append(address[0])
        raise OSError("nobody is there")

    monkeypatch.setattr(socket, "create_connection", reach)
    monkeypatch.setattr(fetching._LOOKUPS, "_most", 0)
    with pytest.raises(ValueError, match="nobody is there"):
        fetch(f"http://{host}/", Fetch((), 1000, 0.5))
    assert reached == [host.strip("[]")]


def test_slow_lookups_of_one_owner_leave_threads_to_another(resolver: Resolver) -> None:
    lookups = NameLookups(3, 2)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="took too long"):
            lookups.addresses("slow.example", 80, soon(), "ann")
    with pytest.raises(TimeoutError, match="waited too long for other lookups"):
        lookups.addresses("a.example", 80, soon(), "ann")
    assert lookups.addresses("a.example", 80, later(), "bob") == [PUBLIC]
    assert resolver.slow == []
    resolver.end.set()
    assert lookups.addresses("a.example", 80, later(), "ann") == [PUBLIC]


def test_lookups_at_a_time_are_bounded(resolver: Resolver) -> None:
    lookups = NameLookups(2, 2)
    for owner in ("ann", "bob"):
        with pytest.raises(TimeoutError):
            lookups.addresses("slow.example", 80, soon(), owner)
    with pytest.raises(TimeoutError, match="waited too long for other lookups"):
        lookups.addresses("a.example", 80, soon(), "eve")


def test_a_lookup_that_fails_ends_its_turn(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = NameLookups(1, 1)
    for _ in range(3):
        with pytest.raises(socket.gaierror, match="no such name"):
            lookups.addresses("none.example", 80, later())

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="cannot be looked up now: can't start"):
            lookups.addresses("a.example", 80, later())
    assert lookups.addresses("a.example", 80, later()) == [PUBLIC]
