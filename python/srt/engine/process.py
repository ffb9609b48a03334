"""The engine in a child process: the child's main function, and the parent's handle of the child.

Parent and child share a directory that only this user may enter. It has the files ``config`` and
``vocab`` (MessagePack), which the child reads; ``wire``, a ZMQ ipc socket for messages; and
``progress``, memory mapped by both, with the stage of the child's loop. The child starts with
``config`` and loads the model; ``vocab`` is written meanwhile. The child's first frame is a Reply
with id 0: its data is an EngineInfo, or its message says why the engine could not start.

A child that exits or is stopped (SIGSTOP) is lost: the parent notices within ``WATCH_SECONDS`` or
twice that, and every pending request ends with EngineLost. A child whose loop has been in one step
for ``STALL_SECONDS``, forward passes not counted, has stalled (``Client.stalled``). A child ends
when its parent ends, at whatever stage (``system/processes``).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sglang.srt.config import Config, EdgeConfig
from sglang.srt.core.device_errors import DeviceLost
from sglang.srt.core.messages import Reply, decode_events, encode
from sglang.srt.core.progress import PASS, SIZE, STAGES, Progress
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.engine.info import EngineInfo
from sglang.srt.system import logs
from sglang.srt.system.import_root import IMPORT_ROOT
from sglang.srt.system.processes import socket_directory, stopped_twice, when_orphaned

if TYPE_CHECKING:
    from sglang.srt.engine.engine_core import EngineCore
    from sglang.srt.engine.loop import Channel

log = logging.getLogger("sglang.srt.engine")
WATCH_SECONDS = 0.25
STALL_SECONDS = 10.0
POLL_SECONDS = 0.002
DEVICE_LOST = 3  # exit code
SOCKET = "wire"


class Started:
    """An engine process that loads its model. It needs no event loop. As a context manager it is
    killed at the end of the block. Raises OSError if no process can be started.
    """

    def __init__(self, config: Config) -> None:
        self.directory = socket_directory(SOCKET)
        try:
            (self.directory / "progress").write_bytes(bytes(SIZE))
            self.memory = map_progress(self.directory)
            self.child = _child(config, self.directory)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def provide(self, token_bytes: Sequence[bytes]) -> None:
        """Write the vocabulary for the child, atomically. Raises OSError."""
        part = self.directory / "vocab.part"
        part.write_bytes(msgspec.msgpack.encode(list(token_bytes)))
        part.rename(self.directory / "vocab")

    def kill(self) -> None:
        """Kill the engine now and remove its files."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.memory.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Stall:
    """Detector of a stalled loop. ``look`` is called every ``interval`` seconds.

    Time is counted in calls of ``look``, so a pause of this process itself does not count as a
    stall of the other. Time in a forward pass does not count: the watchdog limits it.
    """

    def __init__(self, progress: Progress, interval: float, seconds: float) -> None:
        self._progress = progress
        self._interval, self._seconds = interval, seconds
        self._turn, self._stage, self._request = progress.read()
        self._looks = 0  # looks in this turn that found another stage than a forward pass

    def look(self) -> bool:
        """Return whether the current turn has lasted ``seconds``, its forward pass not counted."""
        turn, self._stage, self._request = self._progress.read()
        if turn != self._turn:
            self._turn, self._looks = turn, 0
        if self._stage != PASS:
            self._looks += 1
        return self._looks * self._interval > self._seconds

    @property
    def request(self) -> int:
        """Id of the request that the loop worked for at the last look; 0: no single request."""
        return self._request

    @property
    def stage(self) -> str:
        return STAGES[self._stage] if self._stage < len(STAGES) else f"stage {self._stage}"


class EngineProcess:
    """The parent's handle of an engine process. Await ``ready`` before use. Raises OSError."""

    def __init__(self, started: Started, token_bytes: Sequence[bytes]) -> None:
        from sglang.srt.engine.wire import Wire

        self._started, self._child = started, started.child
        self.pid = started.child.pid
        self._first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        try:
            started.provide(token_bytes)
            self._wire = Wire(f"ipc://{started.directory / SOCKET}", self._take)
        except BaseException:
            started.kill()
            raise
        self._watching: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._stall = Stall(Progress(started.memory), WATCH_SECONDS, STALL_SECONDS)
        self._working_for = (0, "")  # number and name of the request that the loop works for
        self._stalled, self._unanswered = False, 0.0
        self.client: Client

    @property
    def info(self) -> EngineInfo:
        return self.client.info

    async def wait_lost(self) -> EngineLost:
        """Wait until the engine has ended, by itself or by ``stop``. Return the reason."""
        await self._lost.wait()
        assert self.client.lost is not None
        return self.client.lost

    async def stop(self, seconds: float = 2.0) -> None:
        """Request the engine's exit, and kill it after ``seconds``. May be called twice."""
        if self._watching is not None:
            self._watching.cancel()
        with contextlib.suppress(Exception):
            self._wire.send(b"")
        deadline = asyncio.get_running_loop().time() + seconds
        while self._child.poll() is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        self.kill()
        if hasattr(self, "client"):
            self._fail("the engine was shut down")

    def set_unanswered(self, seconds: float) -> None:
        """Note for how many seconds the engine has not answered; 0: it has answered."""
        self._unanswered = seconds
        self._say()

    @property
    def stage_text(self) -> str:
        """The stage of the engine's loop, and the request it works for, as text for messages."""
        number, name = self._working_for
        if not number:
            return f"it is at {self._stall.stage}"
        named = f" ({name!r})" if name else ""
        return f"it is at {self._stall.stage}, for request {number}{named}"

    def _say(self) -> None:
        """Set ``client.stalled``. Log the beginning and the end of a stall once each."""
        before, stalled, stage = self.client.stalled, "", self.stage_text
        if self._unanswered:
            stalled = f"the engine has not answered for {self._unanswered:g} s; {stage}"
        elif self._stalled:
            stalled = f"a step of the engine has not ended for {STALL_SECONDS:g} s; {stage}"
        self.client.stalled = stalled
        if stalled and not before:
            log.error("%s", stalled)
        elif before and not stalled:
            log.warning("the engine makes progress again")

    def lose(self, message: str) -> None:
        """Kill the engine and fail its requests because of ``message``: it cannot be used."""
        if self._child.poll() is None:
            self._child.kill()
        self._fail(message)

    def kill(self) -> None:
        """Kill the engine now and remove its files."""
        self._wire.close()
        self._started.kill()

    async def ready(self) -> None:
        """Wait until the child has loaded the model, then set ``client``.

        Raises EngineLost, with the child's own message if it sent one, when it cannot start.
        """
        first, stopped = self._first, stopped_twice(self.pid)
        while not first.done():
            dead = self._child.poll() is not None
            await asyncio.wait([first], timeout=WATCH_SECONDS)
            if not first.done() and dead:  # a last message would have arrived by now
                code = self._child.returncode
                raise EngineLost(f"the engine exited with code {code} while starting")
            if stopped():
                raise EngineLost("the engine process was stopped from outside while starting")
        reply = decode_events(first.result())[0]
        assert isinstance(reply, Reply)
        if not reply.ok:
            raise EngineLost(reply.message)
        self.client = Client(msgspec.convert(reply.data, EngineInfo), self._transmit)
        self._watching = asyncio.create_task(self._watch())

    def _transmit(self, verbs: Sequence[object]) -> None:
        self._wire.send(encode(list(verbs)))

    def _take(self, frame: bytes) -> None:
        """Take a frame: the first one is for ``ready``, later ones are events for the client."""
        if not self._first.done():
            self._first.set_result(frame)
            return
        try:
            events = decode_events(frame)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.error("dropped a malformed frame of %d bytes: %s", len(frame), error)
            return
        self.client.deliver(events)

    async def _watch(self) -> None:
        stopped = stopped_twice(self.pid)
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            code = self._child.poll()
            if code == DEVICE_LOST:
                await asyncio.sleep(WATCH_SECONDS)  # the last events may still be in the socket
                return self._fail("the engine process ended because its device was lost")
            if code is not None:
                return self._fail(f"the engine process exited with code {code}")
            if stopped():
                return self.lose("the engine process was stopped from outside")
            self._stalled = self._stall.look()
            if self._stall.request != self._working_for[0]:
                number = self._stall.request
                self._working_for = number, self.client.name_of(number)
            self._say()

    def _fail(self, message: str) -> None:
        self.client.fail(EngineLost(message))
        self._lost.set()


async def spawn(config: Config, token_bytes: Sequence[bytes]) -> EngineProcess:
    """Start the engine process and wait until it has loaded the model.

    Raises EngineLost, with the reason, if the engine cannot start. Cancelling kills the child.
    """
    process = EngineProcess(Started(config), token_bytes)
    try:
        await process.ready()
    except BaseException:
        process.kill()
        raise
    return process


def _child(config: Config, directory: Path) -> subprocess.Popen[bytes]:
    """Write the configuration to ``directory`` and start the child. Raises OSError."""
    # The engine serves no HTTP: the keys stay out of the file system.
    server = dataclasses.replace(config.server, api_key="")
    config = dataclasses.replace(config, server=server, edge=EdgeConfig())
    (directory / "config").write_bytes(msgspec.msgpack.encode(dataclasses.asdict(config)))
    paths = [IMPORT_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", "sglang.srt.engine.process", str(directory), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def _vocabulary(config: Config, size: int, eos: Sequence[int]) -> Vocabulary:
    from sglang.srt.tokenizer import Tokenizer

    model = config.model
    tokenizer = Tokenizer.load(model.tokenizer_path or model.model_path, model.revision)
    return tokenizer.vocabulary(size, eos)


def map_progress(directory: Path) -> mmap:
    """Map the file ``progress``, which parent and child share (``Progress``)."""
    with (directory / "progress").open("r+b") as file:
        return mmap(file.fileno(), SIZE)


def read_vocab(directory: Path) -> list[bytes]:
    """Wait until the parent has written the vocabulary. Return the bytes of every token id."""
    while not (directory / "vocab").exists():
        time.sleep(POLL_SECONDS)
    return msgspec.msgpack.decode((directory / "vocab").read_bytes(), type=list[bytes])


def main(directory: str, parent: int) -> int:
    """Run the child. Return its exit code: 0 if the parent stopped it, 1 if it could not start,
    ``DEVICE_LOST`` if only a new process can use the device."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    root = Path(directory)
    when_orphaned(parent, partial(leave, root))
    from sglang.srt.engine.admission import make_compiler
    from sglang.srt.engine.engine_core import EngineCore
    from sglang.srt.engine.executor import local_executor
    from sglang.srt.engine.socket import SocketChannel
    from sglang.srt.engine.speculation_setup import make_drafts
    from sglang.srt.kv_events.publisher import EventPublisher, block_size_of

    config = msgspec.msgpack.decode((root / "config").read_bytes(), type=Config)
    logs.configure(config.server.log_level, config.operations.log_format)
    channel = SocketChannel(f"ipc://{root / SOCKET}")
    settings = config.kv_events.settings
    try:
        publisher = EventPublisher(settings) if settings.enabled else None
        executor, info = local_executor(config, root)
        block_size_of(settings, info.page_size)
        drafts, info = make_drafts(config, info)
        grammars = make_compiler(config, info, partial(_vocabulary, config))
    except (ValueError, ArithmeticError, OSError, MemoryError, RuntimeError) as error:
        log.debug("the engine could not start", exc_info=True)
        channel.connected()
        channel.emit([Reply(0, False, f"{error}")])
        channel.close()
        return 1
    vocab = read_vocab(root)
    share = not config.memory.disable_radix_cache
    seed = config.model.random_seed
    engine = EngineCore(
        executor, info, config.schedule, vocab, share=share, seed=seed,
        grammars=grammars, jumps=config.grammar.jumps, drafts=drafts,
        progress=Progress(map_progress(root)),
    )  # fmt: skip
    if publisher is not None:
        store, name_of = engine.store, engine.adapters.name
        store.tree.watcher = publisher.follow(store.retell, info.page_size, name_of)
    channel.stats = engine.stats
    channel.connected()
    channel.emit([Reply(0, data=msgspec.to_builtins(info))])
    if grammars is not None:
        grammars.warm()
    gc.collect()
    gc.freeze()  # exempt loaded objects from later garbage collections
    code = run_to_end(engine, channel)
    if grammars is not None:
        grammars.close()
    if publisher is not None:
        publisher.close()
    channel.close()
    shutil.rmtree(root, ignore_errors=True)  # in case the parent was killed
    return code


def run_to_end(engine: EngineCore, channel: Channel) -> int:
    """Run the engine until its client or its device is gone; return the exit code."""
    from sglang.srt.engine.loop import serve

    try:
        serve(engine, channel)
    except DeviceLost as error:
        log.error("the device was lost: %s; this engine process ends", error)
        return DEVICE_LOST
    return 0


def leave(root: Path) -> None:
    """Remove ``root`` and exit at once, since the parent has ended without stopping the child."""
    shutil.rmtree(root, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    code = main(sys.argv[1], int(sys.argv[2]))
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # tearing down torch takes seconds, and there is nothing left to save
