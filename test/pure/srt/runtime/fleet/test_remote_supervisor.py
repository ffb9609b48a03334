"""Engines of other machines in a fleet: some are not there at the start, some come back changed."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.remote_child import TOKENS, ThreadEngine, on_a_thread
from helpers.waiting import reached
from sglang.srt.config import Config
from sglang.srt.engine.client import EngineLost
from sglang.srt.remote import remote_engine
from sglang.srt.runtime import supervisor as supervising
from sglang.srt.runtime.fleet import members as fleet_members
from sglang.srt.runtime.fleet import remote_supervisor
from sglang.srt.runtime.fleet.members import Members
from sglang.srt.runtime.fleet.remote_supervisor import RemoteSupervisor

TOKENIZER: Any = SimpleNamespace(token_bytes=TOKENS)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "PAUSE", 0.0)
    monkeypatch.setattr(fleet_members, "ABSENT_SECONDS", 0.02)
    monkeypatch.setattr(remote_engine, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(RemoteSupervisor, "_warm", nothing)
    monkeypatch.setattr(remote_engine.RemoteEngine.ready, "__defaults__", (0.2,))


async def nothing(self: Any, client: Any) -> None:
    pass


def members_of(*addresses: str) -> Members:
    config = Config.of()
    return Members([RemoteSupervisor(config, TOKENIZER, each, None) for each in addresses])


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def test_an_engine_that_is_not_there_at_the_start_joins_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    late = free_address()

    async def test() -> None:
        with on_a_thread() as one:
            members = members_of(late, one.address)
            joined: list[str] = []
            members.changed = lambda engine: joined.append(engine.name)
            await members.start({})
            assert list(members.engines) == [one.address]
            # On a busy machine the time is over before the connection is refused.
            assert re.search(f"{late} (cannot be reached|did not answer)", caplog.text)
            keeping = asyncio.create_task(members.run())
            capacity = members.info.capacity
            assert members.info is members.info, "it is computed once"
            other = await asyncio.to_thread(ThreadEngine, late)
            await reached(lambda: late in members.engines)
            assert joined == [late]
            assert sorted(members.serving()) == sorted([late, one.address])
            assert members.info.capacity == capacity
            assert f"engine {late} answers and joins this server" in caplog.text
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await members.stop()
            await asyncio.to_thread(other.stop)

    run(test)


def test_without_any_engine_there_is_no_start() -> None:
    async def test() -> None:
        with pytest.raises(EngineLost, match="cannot be reached"):
            await members_of(free_address(), free_address()).start({})

    run(test)


def test_a_late_engine_that_does_not_fit_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    late = free_address()

    async def test() -> None:
        with on_a_thread() as one:
            members = members_of(one.address, late)
            await members.start({})
            keeping = asyncio.create_task(members.run())
            other = await asyncio.to_thread(ThreadEngine, late, messages="other")
            await reached(lambda: f"engine {late} is given up" in caplog.text)
            assert list(members.engines) == [one.address]
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await members.stop()
            await asyncio.to_thread(other.stop)

    run(test)


def test_an_engine_that_returns_as_another_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_supervisor, "MOST_REFUSALS", 3)
    address = free_address()

    async def test() -> None:
        engine = await asyncio.to_thread(ThreadEngine, address)
        members = members_of(address)
        await members.start({})
        keeping = asyncio.create_task(members.run())
        await asyncio.to_thread(engine.stop)
        engine = await asyncio.to_thread(ThreadEngine, address, model="another model")
        lost = await keeping
        assert "another model" in str(lost)
        refusals = [r for r in caplog.records if "reaching engine" in r.getMessage()]
        assert len(refusals) >= 3
        assert f"engine {address} is given up" in caplog.text
        await members.stop()
        await asyncio.to_thread(engine.stop)

    with caplog.at_level(logging.INFO):
        run(test)
