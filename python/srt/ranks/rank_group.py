"""RankGroup: the planner's handle on its ranks: starts, messages and end of their processes.

One thread starts the ranks, receives their messages and watches their processes. Any thread may
send. A rank that ends, is stopped or reports a failure ends the group; results are DeviceLost then.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
from sglang.srt.config import Config, EdgeConfig, ServerConfig
from sglang.srt.core.device_errors import DeviceLost
from sglang.srt.ranks.layout import RankLayout
from sglang.srt.ranks.links import InLink, OutLink, bracketed, numeric
from sglang.srt.ranks.rank_messages import (
    Hello,
    NodeBeat,
    NodeJoins,
    NodeRefused,
    NodeStarts,
    RankFailed,
    RankMessage,
    Stop,
    decode_message,
    encode_message,
)
from sglang.srt.system.import_root import IMPORT_ROOT
from sglang.srt.system.processes import socket_directory, stopped_twice

log = logging.getLogger("sglang.srt.ranks")
WATCH_SECONDS = 0.25  # between two checks of the processes
BEAT_SECONDS = 0.5  # between two heartbeats of a machine
SILENT_SECONDS = 3.0  # without a heartbeat, after which a machine is lost
CAUSE_SECONDS = 0.1  # wait for a killed rank's exit status after another rank reports a failure
STOP_SECONDS = 1.0  # grace period of stopped ranks before they are killed
LONGEST_NAME = "999d"  # longest name of a socket file


class RankChild:
    """The process of a rank on this machine."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self.rank, self.process = rank, process
        self._stopped = stopped_twice(process.pid)

    def fault(self) -> str:
        """Return the reason why the process has ended or is stopped, "" while it runs."""
        code = self.process.poll()
        if code is not None:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
            return f"rank {self.rank} (process {self.process.pid}) ended by {how}"
        if self._stopped():
            return f"rank {self.rank} (process {self.process.pid}) was stopped from outside"
        return ""

    def kill(self) -> None:
        with suppress(OSError):
            self.process.kill()


def write_config(config: Config, directory: Path) -> None:
    """Write the configuration, without keys, to a file for the ranks of this machine."""
    server = ServerConfig(
        skip_server_warmup=config.server.skip_server_warmup, log_level=config.server.log_level
    )
    config = replace(config, server=server, edge=EdgeConfig())
    (directory / "config").write_bytes(msgspec.msgpack.encode(asdict(config)))


def shared_memory(layout: RankLayout, node: int) -> dict[int, int]:
    """Create the memory that the ranks of a stage share. Return descriptors by stage, for stages
    whose ranks are all on the machine ``node``; none for stages of one rank."""
    if layout.tensor == 1 or not hasattr(os, "memfd_create"):
        return {}
    local = layout.node_ranks(node)
    stages = {layout.stage(rank) for rank in local}
    return {
        stage: os.memfd_create("sglang-ranks")
        for stage in stages
        if all(rank in local for rank in layout.stage_ranks(stage))
    }


def start_ranks(
    node: int, epoch: int, planner: str, directory: Path, config: Config
) -> list[RankChild]:
    """Start the ranks of this machine. Raises OSError."""
    layout, children = RankLayout.of(config.parallel), list[RankChild]()
    memory = shared_memory(layout, node)
    try:
        for rank in layout.node_ranks(node):
            shared = memory.get(layout.stage(rank), -1)
            children.append(_start_rank(rank, epoch, planner, directory, config, shared))
    except OSError:
        for child in children:
            child.kill()
        raise
    finally:
        for descriptor in memory.values():
            os.close(descriptor)
    return children


def _start_rank(
    rank: int, epoch: int, planner: str, directory: Path, config: Config, memory: int
) -> RankChild:
    parallel = config.parallel
    host, port = parallel.address if parallel.nnodes > 1 else ("", 0)
    argument = {
        "rank": rank, "epoch": epoch, "planner": planner, "directory": str(directory),
        "parent": os.getpid(), "host": host, "port": port, "memory": memory,
    }  # fmt: skip
    paths = [IMPORT_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    cores = len(os.sched_getaffinity(0))
    threads = config.model.threads or max(1, cores // parallel.local_processes)
    process = subprocess.Popen(
        [sys.executable, "-m", "sglang.srt.ranks.rank", msgspec.json.encode(argument).decode()],
        stdin=subprocess.DEVNULL,
        pass_fds=() if memory < 0 else (memory,),
        env={
            **os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads),
        },
    )  # fmt: skip
    return RankChild(rank, process)


class RemoteNode:
    """Another machine that has joined. ``heard``: time of its last heartbeat."""

    def __init__(self, number: int, outbox: OutLink, now: float) -> None:
        self.number, self.outbox, self.heard = number, outbox, now


class RankGroup:
    """All ranks of one start of the planner.

    Args:
        directory: for the sockets of this machine, removed by the caller; None: a new directory.

    Attributes:
        lost: the reason why the ranks have ended; "" while they run.
    """

    def __init__(self, config: Config, directory: Path | None = None) -> None:
        """Start the ranks. Raises OSError if the address is in use or a process cannot be
        started."""
        self.config, self.layout = config, RankLayout.of(config.parallel)
        self.epoch = secrets.randbits(48)
        self.lost = ""
        self.messages: queue.SimpleQueue[RankMessage | DeviceLost] = queue.SimpleQueue()
        self.takes: Callable[[RankMessage], bool] = _nothing
        self._own = directory is None
        self.directory = directory or socket_directory(LONGEST_NAME)
        self.facts = node_facts(config)
        self._outboxes: dict[int, OutLink] = {}
        self._nodes: dict[int, RemoteNode] = {}
        self._children: list[RankChild] = []
        self._sending = threading.Lock()
        self._failure: Exception | None = None
        self._closing = threading.Event()
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="srt-ranks", daemon=True
        )
        self._thread.start()
        started.wait()
        if self._failure is not None:
            self._remove()
            raise self._failure

    # -- messages --------------------------------------------------------------------------------

    def connect(self, rank: int, address: str) -> None:
        with self._sending:
            self._outboxes[rank] = OutLink(address)

    def send(self, rank: int, message: RankMessage) -> None:
        """Send a message to one rank."""
        frame = encode_message(message)
        with self._sending:
            self._outboxes[rank].send(frame)

    def send_all(self, message: RankMessage) -> None:
        """Send one frame to all ranks."""
        frame = encode_message(message)
        with self._sending:
            for outbox in self._outboxes.values():
                outbox.send(frame)

    def take(
        self, kinds: tuple[type[RankMessage], ...], deadline: float, absent: str
    ) -> RankMessage:
        """Wait during the start for a message of ``kinds``. ``absent``: text of the TimeoutError.
        Raises the ValueError or MemoryError of a rank that fails, TimeoutError, DeviceLost."""
        while True:
            try:
                left = max(0.0, deadline - time.monotonic())
                message = self.messages.get(timeout=left)
            except queue.Empty:
                seconds = self.config.parallel.dist_timeout
                raise TimeoutError(
                    f"{absent} within {seconds} s; see its log, or raise --dist-timeout."
                ) from None
            if isinstance(message, DeviceLost):
                raise message
            if isinstance(message, RankFailed):
                raise _error_of(message)
            if isinstance(message, kinds):
                return message

    # -- the thread ------------------------------------------------------------------------------

    def _run(self, started: threading.Event) -> None:
        try:
            inbox = self._open()
        except Exception as error:
            self._failure = error
            started.set()
            return
        started.set()
        looked = beaten = time.monotonic()
        while not self._closing.is_set():
            parts = inbox.take(WATCH_SECONDS)
            if parts is not None:
                self._receive(parts[0])
            now = time.monotonic()
            if now - looked >= WATCH_SECONDS and not self.lost:
                late, looked = now - looked > SILENT_SECONDS, now
                if fault := self._fault(now, late):
                    while (parts := inbox.take(0)) is not None:  # may hold a rank's own report
                        self._receive(parts[0])
                    self.lose(fault)
            if now - beaten >= BEAT_SECONDS:
                beaten = now
                self._tell_nodes(NodeBeat(self.epoch, 0))
        inbox.close()

    def _open(self) -> InLink:
        parallel = self.config.parallel
        write_config(self.config, self.directory)
        if parallel.nnodes > 1:
            host, port = parallel.address
            try:
                inbox = InLink(f"tcp://{bracketed(numeric(host, port))}:{port}")
            except OSError as error:
                raise OSError(
                    f"--dist-init-addr is {parallel.dist_init_addr}, which this machine cannot "
                    f"listen at ({error.strerror}); give a free port of an address of node 0",
                ) from error
        else:
            inbox = InLink.of(self.directory, "p")
        self._children += start_ranks(0, self.epoch, inbox.address, self.directory, self.config)
        return inbox

    def _receive(self, frame: bytes) -> None:
        try:
            message = decode_message(frame)
        except (msgspec.DecodeError, ValueError, UnicodeDecodeError) as error:
            log.error("dropped a malformed frame of %d bytes: %s", len(frame), error)
            return
        if isinstance(message, NodeJoins):
            self._join(message)
        elif message.epoch != self.epoch:
            log.warning("dropped a message of epoch %d", message.epoch)
        elif isinstance(message, NodeBeat):
            if message.node in self._nodes:
                self._nodes[message.node].heard = time.monotonic()
        elif isinstance(message, RankFailed):
            self.messages.put(message)
            self.lose(self._cause(message))
        elif not self.takes(message):
            self.messages.put(message)

    def _cause(self, failure: RankFailed) -> str:
        """Return the cause of a failure. A rank that a signal has just killed is the cause."""
        time.sleep(CAUSE_SECONDS if failure.kind == "lost" else 0.0)
        killed = [child for child in self._children if (child.process.poll() or 0) < 0]
        if killed:
            return killed[0].fault()
        return f"rank {failure.rank} cannot go on: {failure.error}"

    def _join(self, message: NodeJoins) -> None:
        """Accept the ranks of a machine, or send NodeRefused with the reason."""
        if message.node in self._nodes:
            return
        outbox = OutLink(message.inbox)
        refusal = differing(self.facts, message.facts, "node 0", f"node {message.node}")
        if not 0 < message.node < self.layout.nodes:
            refusal = f"--node-rank {message.node} is none of --nnodes {self.layout.nodes}."
        if refusal:
            outbox.send(encode_message(NodeRefused(self.epoch, refusal)))
            outbox.close()
            self.messages.put(RankFailed(self.epoch, -1, "value", refusal))
            return
        log.info("node %d has joined", message.node)
        with self._sending:
            self._nodes[message.node] = RemoteNode(message.node, outbox, time.monotonic())
            outbox.send(encode_message(NodeStarts(self.epoch)))

    def _fault(self, now: float, late: bool) -> str:
        """Return the reason why a process or a machine is lost, "" if none is. ``late``: this
        process was suspended, so old heartbeats prove nothing."""
        for child in self._children:
            if fault := child.fault():
                return fault
        for node in self._nodes.values():
            if late:
                node.heard = now
            elif now - node.heard > SILENT_SECONDS:
                return f"node {node.number} has been silent for {SILENT_SECONDS:g} s"
        return ""

    def lose(self, why: str) -> None:
        """End all ranks because of ``why``."""
        if self.lost:
            return
        self.lost = why
        for child in self._children:
            child.kill()
        self._tell_nodes(Stop(self.epoch))
        self.messages.put(DeviceLost(why))
        self.takes(Stop(self.epoch))

    # -- end -------------------------------------------------------------------------------------

    def forget_directory(self) -> None:
        """Remove the socket files, if this group made their directory. Call when all connected."""
        if self._own:
            self._remove()

    def close(self) -> None:
        """End all ranks. A second call has no effect."""
        if self._closing.is_set():
            return
        if not self.lost:
            self.lost = "the ranks were stopped"
            self.send_all(Stop(self.epoch))
            self._tell_nodes(Stop(self.epoch))
            self.takes(Stop(self.epoch))  # ends calls that wait for an answer of the ranks
        deadline = time.monotonic() + STOP_SECONDS
        for child in self._children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
            child.kill()
            child.process.wait()
        self._closing.set()
        self._thread.join()
        for outbox in (*self._outboxes.values(), *(n.outbox for n in self._nodes.values())):
            outbox.close()
        if self._own:
            self._remove()

    def _tell_nodes(self, message: RankMessage) -> None:
        """Send a message to the other machines. The lock is needed because both the group's thread
        and the closing thread send, and a socket supports one thread at a time."""
        frame = encode_message(message)
        with self._sending:
            for node in self._nodes.values():
                node.outbox.send(frame)

    def _remove(self) -> None:
        if self._own:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def missing(self) -> list[int]:
        """Numbers of the machines that have not joined."""
        return [n for n in range(1, self.layout.nodes) if n not in self._nodes]


def node_facts(config: Config) -> dict[str, str]:
    """Return the settings that must be equal on all machines before ranks are started."""
    from sglang.srt.core.version import __version__

    parallel = config.parallel
    return {
        "version": __version__, "nnodes": str(parallel.nnodes), "tp_size": str(parallel.tp_size),
        "pp_size": str(parallel.pp_size), "assigned_layers": parallel.assigned_layers,
    }  # fmt: skip


def differing(one: dict[str, str], other: dict[str, str], name: str, another: str) -> str:
    """Return an error message that lists the facts that differ; "" if none does."""
    names = [key for key in one if one[key] != other.get(key)]
    if not names:
        return ""
    each = ", ".join(f"{key} is {one[key]} on {name} and {other.get(key)} on {another}"
                     for key in names)  # fmt: skip
    return f"the ranks differ: {each}; use one model, one version and the same flags everywhere."


def _error_of(failure: RankFailed) -> Exception:
    kinds = {"value": ValueError, "memory": MemoryError}
    return kinds.get(failure.kind, RuntimeError)(failure.error)


def _nothing(message: RankMessage) -> bool:
    return False


def check_equal(hellos: Sequence[Hello]) -> None:
    """Raise ValueError if the facts of a rank differ from those of the first rank."""
    first = hellos[0]
    for hello in hellos[1:]:
        text = differing(first.facts, hello.facts, f"rank {first.rank}", f"rank {hello.rank}")
        if text:
            raise ValueError(text)
