"""RankNode: a machine whose ranks belong to a planner on another machine.

The node waits for the planner without limit and starts its ranks when the planner requests them. It
ends the ranks when the planner or a rank is lost. Then the node waits again, because the planner's
server may restart its engine.
"""

from __future__ import annotations

import logging
import shutil
import signal
import threading
import time

import msgspec
from sglang.srt.config import Config
from sglang.srt.ranks.links import InLink, OutLink, bracketed, reached_as
from sglang.srt.ranks.rank_group import (
    BEAT_SECONDS,
    LONGEST_NAME,
    SILENT_SECONDS,
    WATCH_SECONDS,
    RankChild,
    node_facts,
    start_ranks,
    write_config,
)
from sglang.srt.ranks.rank_messages import (
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
from sglang.srt.system.processes import socket_directory

log = logging.getLogger("sglang.srt.ranks")
JOIN_SECONDS = 0.5  # between two attempts to join the planner
END_SECONDS = 1.0  # grace period of stopped ranks before they are killed


class RankNode:
    """One of several machines, other than node 0.

    Attributes:
        stopping: set by a signal handler to end the node.
    """

    def __init__(self, config: Config) -> None:
        """Resolve the planner's address. Raises OSError if the host name has no address."""
        self.config, self.number = config, config.parallel.node_rank
        host, port = config.parallel.address
        self.planner = f"tcp://{bracketed(host)}:{port}"
        self.inbox = InLink.of(None, "", reached_as(host, port))
        self.stopping = threading.Event()

    def serve(self) -> str:
        """Serve one start of the planner after another until ``stopping`` is set. Return the reason
        why the planner refuses this machine, "" if the node ends for another reason."""
        log.info("node %d waits for node 0 at %s", self.number, self.planner)
        answer: RankMessage | None = None
        while not self.stopping.is_set():
            answer = answer or self._join()
            if isinstance(answer, NodeRefused):
                return answer.error
            answer = self._run(answer.epoch) if isinstance(answer, NodeStarts) else None
        return ""

    def _join(self) -> RankMessage | None:
        """Offer this machine's ranks. Return the planner's answer, None without an answer."""
        join = NodeJoins(0, self.number, self.inbox.address, node_facts(self.config))
        link = OutLink(self.planner)
        link.send(encode_message(join))
        answer = self._take(JOIN_SECONDS)
        link.close(linger=0)
        return answer if isinstance(answer, NodeStarts | NodeRefused) else None

    def _run(self, epoch: int) -> NodeStarts | None:
        """Run the ranks for one start of the planner until that start ends. Return the message of
        the planner's next start if it has arrived, else None."""
        directory = socket_directory(LONGEST_NAME)
        link, children = OutLink(self.planner), list[RankChild]()
        try:
            write_config(self.config, directory)
            children = start_ranks(self.number, epoch, self.planner, directory, self.config)
            return self._watch(epoch, link, children)
        except OSError as error:
            link.send(encode_message(RankFailed(epoch, self.number, "value", str(error))))
            return None
        finally:
            _end(children)
            link.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _watch(self, epoch: int, link: OutLink, children: list[RankChild]) -> NodeStarts | None:
        heard = looked = time.monotonic()
        beat = encode_message(NodeBeat(epoch, self.number))
        while not self.stopping.is_set():
            link.send(beat)
            message = self._take(min(WATCH_SECONDS, BEAT_SECONDS))
            now = time.monotonic()
            if now - looked > SILENT_SECONDS:  # this process itself was suspended
                heard = now
            looked = now
            if isinstance(message, NodeStarts) and message.epoch != epoch:
                return message
            if message is not None and message.epoch == epoch:
                heard = now
                if isinstance(message, Stop):
                    log.info("node 0 has stopped the ranks of node %d", self.number)
                    return None
            for child in children:
                if fault := child.fault():
                    log.error("%s", fault)
                    link.send(encode_message(RankFailed(epoch, child.rank, "lost", fault)))
                    return None
            if now - heard > SILENT_SECONDS:
                log.error("node 0 has been silent for %g s", SILENT_SECONDS)
                return None
        return None

    def _take(self, seconds: float) -> RankMessage | None:
        parts = self.inbox.take(seconds)
        if parts is None:
            return None
        try:
            return decode_message(parts[0])
        except (msgspec.DecodeError, ValueError, UnicodeDecodeError) as error:
            log.error("dropped a malformed frame of %d bytes: %s", len(parts[0]), error)
            return None


def _end(children: list[RankChild]) -> None:
    """Wait for ranks that the planner has stopped, then kill the others."""
    deadline = time.monotonic() + END_SECONDS
    for child in children:
        while child.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        child.kill()
        child.process.wait()


def run_node(config: Config) -> str:
    """Serve as a machine other than node 0 until a signal. Return the planner's reason for a
    refusal, "" for none. Raises OSError."""
    node = RankNode(config)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: node.stopping.set())
    return node.serve()
