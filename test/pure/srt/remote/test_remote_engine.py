"""Remote engines over real sockets: fronts, networks and engines that fail."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from helpers.bad_network import FrameProxy, proxied
from helpers.paths import PYTHON
from helpers.remote_child import (
    LOCAL,
    TOKENS,
    ThreadEngine,
    as_a_process,
    expected_text,
    facts_of,
    make_engine,
    on_a_thread,
)
from helpers.text_worker import TextWorker
from helpers.waiting import reached
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Done, Generate, Open, Tokens
from sglang.srt.engine import loop
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.remote import engine_server, fronts_channel, remote_frames
from sglang.srt.remote.curve_keys import (
    FrontKeys,
    read_engine_keys,
    read_front_keys,
    write_keys,
)
from sglang.srt.remote.front_link import EngineRefused
from sglang.srt.remote.fronts import FrontLimits, Fronts
from sglang.srt.remote.fronts_channel import FrontsChannel
from sglang.srt.remote.handshake import Arithmetic, Expected
from sglang.srt.remote.remote_engine import LinkCounts, RemoteEngine
from sglang.srt.remote.remote_frames import Kind, header_of

pytestmark = pytest.mark.slow  # sockets, threads and processes

HEARTBEAT = 0.6
LONG = 3000  # tokens that no test waits for


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle engine turns often."""
    monkeypatch.setattr(loop, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(fronts_channel, "BEAT_SECONDS", 0.05)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))


@asynccontextmanager
async def front(address: str, keys: FrontKeys | None = None, **options: Any):
    engine = RemoteEngine(address, keys, heartbeat=HEARTBEAT, **options)
    try:
        await engine.ready(30)
        yield engine
    finally:
        await engine.stop()


async def generate(client: Client, prompt: list[int], count: int) -> list[int]:
    """A greedy completion."""
    context, request = client.new_id(), client.new_id()
    sampling = SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)
    advance = Advance(context, request, Generate(sampling), close=True)
    inbox = client.submit(request, [Open(context, ints(prompt).tobytes()), advance])
    events = [event async for event in inbox]
    assert isinstance(events[-1], Done), events[-1]
    return [token for event in events if isinstance(event, Tokens) for token in event.tokens]


async def begun(engine: RemoteEngine) -> asyncio.Task[list[int]]:
    """A long generation that the engine computes."""
    task = asyncio.create_task(generate(engine.client, [9, 9], LONG))
    while not (await engine.client.control("stats")).data["running"]:
        await asyncio.sleep(0.01)
    return task


async def lost(task: asyncio.Task[list[int]]) -> str:
    with pytest.raises(EngineLost) as found:
        await task
    return str(found.value)


# -- fronts ----------------------------------------------------------------------------------------


def test_two_fronts_at_once_have_the_same_texts() -> None:
    async def test() -> None:
        with on_a_thread() as own:
            async with front(own.address) as one, front(own.address) as other:
                prompts = [[i, i + 1, 5] for i in range(12)]
                texts = await asyncio.gather(
                    *(generate(e.client, p, 20) for p in prompts for e in (one, other))
                )
                wanted = [expected_text(p, 20) for p in prompts for _ in range(2)]
                assert texts == wanted
                stats = (await one.client.control("stats")).data
                assert stats["fronts"] == 2
                assert stats["contexts"] == stats["protected_tokens"] == 0
                assert one.exact
            await reached(lambda: own.fronts.count == 0)
            assert own.fronts.counts.lost_fronts == 0
            assert not own.engine.store.contexts

    run(test)


def test_what_a_front_that_leaves_computed_ends() -> None:
    async def test() -> None:
        with on_a_thread(seconds=0.002) as own:
            async with front(own.address) as stays:
                async with front(own.address) as leaves:
                    pending = await begun(leaves)
                    context = leaves.client.new_id()
                    leaves.client.send(Open(context, ints([1, 2]).tobytes()))
                    assert (await leaves.client.control("stats")).data["contexts"] == 2
                assert "has left" in await lost(pending)
                await reached(lambda: not own.engine.store.contexts)
                assert await generate(stays.client, [4], 8) == expected_text([4], 8)
                stats = (await stays.client.control("stats")).data
                assert stats["running"] == stats["waiting"] == stats["protected_tokens"] == 0
                assert stats["aborted"] == 1
                assert own.fronts.counts.closed_contexts == 2

    run(test)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_front_that_is_killed_or_stopped_leaves_nothing(fault: int) -> None:
    async def test() -> None:
        with on_a_thread(seconds=0.002) as own:
            async with front(own.address) as stays:
                child = subprocess.Popen(
                    [sys.executable, str(Path(__file__)), own.address],
                    env={"PYTHONPATH": f"{PYTHON}:{Path(__file__).parents[3]}"},
                )
                try:
                    await reached(lambda: len(own.engine.store.contexts) == 3)
                    os.kill(child.pid, fault)
                    await reached(lambda: own.fronts.counts.lost_fronts == 1)
                    await reached(lambda: not own.engine.store.contexts)
                    stats = (await stays.client.control("stats")).data
                    assert stats["fronts"] == 1
                    assert stats["running"] == stats["protected_tokens"] == 0
                    assert await generate(stays.client, [4], 8) == expected_text([4], 8)
                finally:
                    child.kill()
                    child.wait()

    run(test)


def test_more_fronts_than_may_be_are_refused() -> None:
    async def test() -> None:
        with on_a_thread(limits=FrontLimits(fronts=1)) as own:
            async with front(own.address) as one:
                with pytest.raises(EngineRefused, match=r"1 servers use this engine.*--max-fronts"):
                    async with front(own.address):
                        pass
                assert await generate(one.client, [4], 8) == expected_text([4], 8)
            await reached(lambda: own.fronts.count == 0)
            async with front(own.address):
                pass
            assert own.fronts.counts.refused_fronts == 1

    run(test)


# -- networks --------------------------------------------------------------------------------------


def test_a_cut_connection_ends_the_session_on_both_sides() -> None:
    async def test() -> None:
        with on_a_thread(seconds=0.002) as own:
            async with proxied(own.address) as proxy, front(proxy.address) as engine:
                first, pending = engine.facts, await begun(engine)
                proxy.cut()
                assert "connection" in await lost(pending)
                assert str(await engine.wait_lost()) == str(engine.client.lost)
                await reached(lambda: not own.engine.store.contexts)
                again = engine.again()
                await again.ready(30)  # the same engine, another session
                assert again.facts == first
                assert again._session._order.epoch != engine._session._order.epoch
                assert await generate(again.client, [4], 8) == expected_text([4], 8)
                assert again.counts == LinkCounts(sessions=2, reconnections=1)
                await again.stop()

    run(test)


def test_a_partition_is_noticed_on_both_sides() -> None:
    """Half-open: no end of the connection learns that the other one is not heard any more."""

    async def test() -> None:
        with on_a_thread(seconds=0.002) as own:
            async with proxied(own.address) as proxy, front(proxy.address) as engine:
                pending = await begun(engine)
                proxy.flowing.clear()
                assert f"not heard of for {HEARTBEAT:g} s" in await lost(pending)
                await reached(lambda: own.fronts.counts.lost_fronts == 1)
                await reached(lambda: not own.engine.store.contexts)
                proxy.flowing.set()  # late bytes come now
                async with front(own.address) as direct:
                    assert await generate(direct.client, [4], 8) == expected_text([4], 8)
                    assert (await direct.client.control("stats")).data["fronts"] == 1

    run(test)


def test_a_slow_network_changes_no_text() -> None:
    async def test() -> None:
        with on_a_thread() as own:
            async with proxied(own.address) as proxy:
                proxy.delay = 0.01
                async with front(proxy.address) as engine:
                    assert await generate(engine.client, [4], 20) == expected_text([4], 20)

    run(test)


def test_a_pass_longer_than_the_heartbeat_ends_nothing() -> None:
    """A slow worker: the engine's loop says nothing for longer than the timeout."""

    async def test() -> None:
        with on_a_thread(seconds=2.5 * HEARTBEAT) as own:
            async with front(own.address) as engine:
                assert await generate(engine.client, [4], 2) == expected_text([4], 2)
                assert own.fronts.counts.lost_fronts == 0

    run(test)


def mangled(kinds: tuple[Kind, ...], change: Callable[[list[bytes]], list[bytes]], at: int = 3):
    """Collect two frames of these kinds, from the ``at``-th on, and pass them on changed, once."""
    held: list[bytes] = []
    seen = [0]

    def mangle(way: str, frame: bytes) -> list[bytes]:
        if header_of(frame).kind not in kinds:
            return [frame]
        seen[0] += 1
        if not at <= seen[0] < at + 2:
            return [frame]
        held.append(frame)
        return change(held) if len(held) == 2 else []

    return mangle


def test_frames_that_come_twice_are_dropped() -> None:
    async def test() -> None:
        with (
            on_a_thread() as own,
            FrameProxy(own.address, lambda way, frame: [frame, frame]) as proxy,
        ):
            async with front(proxy.address) as engine:
                for prompt in ([4], [5, 6]):
                    assert await generate(engine.client, prompt, 20) == expected_text(prompt, 20)
                assert engine.counts.dropped > 20
                assert own.fronts.counts.dropped_frames >= 3
                assert own.engine.stats.received == 2
                assert own.fronts.counts.front_sessions == 1

    run(test)


@pytest.mark.parametrize(
    "change",
    [lambda two: [two[1], two[0]], lambda two: [two[1]]],
    ids=["reordered", "one is missing"],
)
@pytest.mark.parametrize("kinds", [(Kind.EVENTS,), (Kind.VERBS,)], ids=["events", "verbs"])
def test_frames_out_of_order_end_the_session(kinds: Any, change: Any) -> None:
    async def test() -> None:
        with on_a_thread() as own:
            with FrameProxy(own.address, mangled(kinds, change, 2)) as proxy:
                async with front(proxy.address) as engine:

                    async def several() -> list[int]:
                        found: list[int] = []
                        for _ in range(9):
                            found += await generate(engine.client, [4], 20)
                        return found

                    tasks = [asyncio.create_task(several()) for _ in range(2)]
                    for task in tasks:
                        assert "frames are missing, or in another order" in await lost(task)
                    assert engine.counts.broken + own.fronts.counts.broken_sessions == 1
                    engine.kill()
            await reached(lambda: not own.engine.store.contexts)

    run(test)


def test_frames_of_an_earlier_session_are_dropped() -> None:
    async def test() -> None:
        old: list[bytes] = []
        with on_a_thread() as own:

            def keep(way: str, frame: bytes) -> list[bytes]:
                if way == "to the front" and header_of(frame).kind is Kind.EVENTS:
                    old.append(frame)
                return [frame]

            def repeat(way: str, frame: bytes) -> list[bytes]:
                return [*old, frame] if way == "to the front" else [frame]

            for mangle in (keep, repeat):
                with FrameProxy(own.address, mangle) as proxy:
                    async with front(proxy.address) as engine:
                        assert await generate(engine.client, [4], 9) == expected_text([4], 9)
            assert engine.counts.dropped >= len(old) > 0

    run(test)


# -- engines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_is_killed_or_stopped_is_lost(fault: int) -> None:
    async def test() -> None:
        with as_a_process(seconds=0.002) as (child, address):
            async with front(address) as engine:
                pending = await begun(engine)
                os.kill(child.pid, fault)
                assert "connection to the engine" in await lost(pending)
                with pytest.raises(EngineLost):
                    engine.client.send(Open(1, b""))

    run(test)


def test_a_front_finds_an_engine_that_was_started_again() -> None:
    async def test() -> None:
        with as_a_process(seconds=0.002) as (child, address):
            async with front(address) as engine:
                pending, facts = await begun(engine), engine.facts
                child.kill()
                await lost(pending)
        with pytest.raises(EngineLost, match="nothing listens there"):
            await engine.again().ready(0.1)
        again = engine.again()
        waiting = asyncio.create_task(again.ready(60))
        with as_a_process(address) as (_, same):
            assert same == address
            await waiting
            assert Expected.like(again.facts) == Expected.like(facts)
            assert again._session._order.epoch != engine._session._order.epoch
            assert await generate(again.client, [4], 8) == expected_text([4], 8)
            assert again.counts.reconnections == 1
            await again.stop()

    run(test)


def test_an_engine_that_stops_says_so() -> None:
    async def test() -> None:
        own = ThreadEngine(seconds=0.002)
        async with front(own.address) as engine:
            pending = await begun(engine)
            await asyncio.to_thread(own.stop)
            assert "has ended the session: the test is over" in await lost(pending)

    run(test)


def test_an_engine_that_dies_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> int:
        raise ValueError("no more")

    async def test() -> None:
        channel = FrontsChannel(LOCAL, None, HEARTBEAT)
        core = make_engine()
        channel.open(Fronts(facts_of(core), core.store.contexts, FrontLimits(), boot=1))
        engine = RemoteEngine(channel.address, heartbeat=HEARTBEAT)
        ready = asyncio.create_task(engine.ready(30))
        while not ready.done():
            channel.receive(0.0, 1)
            await asyncio.sleep(0.01)
        assert engine_server.run(core, channel) == 1
        channel.close()
        core.close()
        assert "has ended the session: it died: ValueError: no more" in str(
            await engine.wait_lost()
        )

    monkeypatch.setattr(engine_server, "run_to_end", die)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    run(test)


def test_a_taken_port_is_named() -> None:
    with (
        on_a_thread() as own,
        pytest.raises(OSError, match="choose another with --listen") as found,
    ):
        FrontsChannel(own.address, None, HEARTBEAT)
    assert found.value.errno == errno.EADDRINUSE


class Faulty(TextWorker):
    """A worker one of whose passes fails, as for a disk that is full."""

    def run(self, batch: Any) -> Any:
        result = super().run(batch)
        if batch.id == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return result


def test_a_full_disk_fails_a_pass_and_not_the_engine() -> None:
    async def test() -> None:
        with on_a_thread(worker=Faulty(len(TOKENS))) as own:
            async with front(own.address) as engine, front(own.address) as other:
                with pytest.raises(AssertionError, match="No space left on device"):
                    await generate(engine.client, [4], 20)
                for e in (engine, other):
                    assert await generate(e.client, [4], 20) == expected_text([4], 20)
                assert own.engine.stats.failed_passes == 1

    run(test)


def test_wall_clock_jumps_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with on_a_thread(seconds=0.002) as own:
            async with front(own.address) as engine:
                pending = asyncio.create_task(generate(engine.client, [4], 300))
                for seconds in (1e6, -1e6, 0.0):
                    monkeypatch.setattr(time, "time", lambda s=seconds: s)
                    monkeypatch.setattr(time, "time_ns", lambda s=seconds: int(s * 1e9))
                    await asyncio.sleep(0.1)
                assert await pending == expected_text([4], 300)
                assert own.fronts.counts.lost_fronts == 0

    run(test)


# -- refusals --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": "other"}, "its model is toy .*and not other"),
    "vocabulary": ({"vocabulary": "other"}, "its vocabulary is .* give both one tokenizer"),
    "purpose": ({"purpose": "embed"}, "its purpose is generate"),
    "context": ({"context_length": 77}, "its context length is 4096 .*--context-length"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_model_is_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    settings, reason = REFUSED[name]

    async def test() -> None:
        with on_a_thread() as own:
            counts = LinkCounts()
            with pytest.raises(EngineRefused, match=reason):
                async with front(own.address, expected=Expected(**settings), counts=counts):
                    pass
            assert own.fronts.counts.refused_fronts == counts.refused == 1
            assert own.fronts.count == 0

    with caplog.at_level(logging.ERROR):
        run(test)
    assert "is refused: its " in caplog.text


@pytest.mark.parametrize("side", ["to the engine", "to the front"])
def test_another_protocol_is_refused_on_both_sides(side: str) -> None:
    async def test() -> None:
        with on_a_thread() as own:

            def newer(way: str, frame: bytes) -> list[bytes]:
                return [frame[:3] + b"\x63" + frame[4:]] if way == side else [frame]

            reason = "it speaks protocol 99 and this end 1"
            with (
                FrameProxy(own.address, newer) as proxy,
                pytest.raises(EngineRefused, match=reason),
            ):
                async with front(proxy.address):
                    pass

    run(test)


def test_other_messages_are_refused() -> None:
    async def test() -> None:
        reason = r"its messages differ.*use one version"
        with (
            on_a_thread(messages="0123456789abcdef") as own,
            pytest.raises(EngineRefused, match=reason),
        ):
            async with front(own.address):
                pass

    run(test)


def test_other_arithmetic_is_marked(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with on_a_thread(arithmetic=Arithmetic(kernels="avx2", dtype="bfloat16")) as own:
            wanted = Expected(arithmetic=Arithmetic(kernels="amx", dtype="bfloat16"))
            async with front(own.address, expected=wanted) as engine:
                assert not engine.exact
                assert engine.differs == ["kernels is avx2, not amx"]
            async with front(own.address, expected=Expected.like(engine.facts)) as engine:
                assert engine.exact

    run(test)
    assert "kernels is avx2, not amx" in caplog.text


# -- keys ------------------------------------------------------------------------------------------


def test_keys_let_their_own_in_and_no_others(tmp_path: Path) -> None:
    own_engine, own_front = write_keys(tmp_path / "own")
    _, other_front = write_keys(tmp_path / "other")
    mine, theirs = read_front_keys(str(own_front)), read_front_keys(str(other_front))
    wrong_engine = msgspec.structs.replace(mine, engine=theirs.engine)
    stranger = msgspec.structs.replace(theirs, engine=mine.engine)

    async def test() -> None:
        with on_a_thread(keys=read_engine_keys(str(own_engine))) as own:
            for keys, reason in (
                (stranger, "it does not know this front's key"),
                (wrong_engine, "it has another key than 'engine'"),
                (None, "it has keys and this front none"),
            ):
                with pytest.raises(EngineRefused, match=reason):
                    async with front(own.address, keys):
                        pass
            await reached(lambda: own.fronts.counts.refused_strangers >= 3)
            assert own.fronts.counts.front_sessions == 0
            async with front(own.address, mine) as engine:
                assert await generate(engine.client, [4], 8) == expected_text([4], 8)
        with (
            on_a_thread() as open_one,
            pytest.raises(EngineRefused, match=r"another key than .*, or none"),
        ):
            async with front(open_one.address, mine):
                pass

    run(test)


def test_garbage_from_strangers_is_dropped_and_fronts_go_on() -> None:
    async def test() -> None:
        with on_a_thread(seconds=0.001) as own:
            async with front(own.address) as engine:
                pending = asyncio.create_task(generate(engine.client, [4], 200))
                host, port = own.address.removeprefix("tcp://").split(":")
                for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), b"\xff" + bytes(99)):
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.write(data)
                    await writer.drain()
                    writer.close()
                context = zmq.Context()
                stranger = context.socket(zmq.DEALER)
                stranger.connect(own.address)
                frames = [[b""], [b"x" * 100], [b"a", b"b", b"c"],
                          [remote_frames.packed(Kind.VERBS, 1, 1, b"\x90")],
                          [remote_frames.packed(Kind.HELLO, 1, 0, b"\xc1")]]  # fmt: skip
                for parts in frames:
                    stranger.send_multipart(parts)
                assert await pending == expected_text([4], 200)
                await reached(lambda: own.fronts.counts.dropped_frames >= 4)
                assert header_of(stranger.recv()).kind is Kind.REFUSED
                assert own.fronts.count == 1
                context.destroy(linger=0)

    run(test)


async def hold(address: str) -> None:
    """A front that computes until it is killed."""
    async with front(address) as engine:
        engine.client.send(Open(engine.client.new_id(), ints([1, 2]).tobytes()))
        long = [generate(engine.client, [n], LONG) for n in (3, 4)]
        await asyncio.gather(*long)


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1]))
