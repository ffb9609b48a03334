"""EventPublisher: sends the events of recorded passes to subscribers, and repeats old ones.

One thread turns what a ``TreeRecorder`` has queued into batches, numbers them from 0 and sends them
over a PUB socket; another answers on a ROUTER socket: a request is a sequence number, its answers
are (number, payload) of that batch and all later ones that are kept, then (-1, "").

Numbers are missing where batches were dropped, here or on the way to a subscriber.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

import msgspec
import zmq
from sglang.srt.config.kv_events_section import KvEventsSettings
from sglang.srt.kv_events.block_index import BlockIndex
from sglang.srt.kv_events.event_wire import END, EventBatch
from sglang.srt.kv_events.recorder import RecordedPass, Retell, TreeRecorder

log = logging.getLogger("sglang.srt.kv_events")

BLOCK_TOKENS = 16  # least size of a block by default
_STOP = "inproc://stop"


def block_size_of(settings: KvEventsSettings, page_size: int) -> int:
    """Tokens a block: as the settings say, else the fewest pages that have 16. Raises ValueError
    where that is no whole number of pages."""
    size = settings.block_size or page_size * -(-BLOCK_TOKENS // page_size)
    if size % page_size:
        raise ValueError(
            f"--kv-events-config: block_size is {size}; it must be a multiple of the page size, "
            f"{page_size} (--page-size)"
        )
    return size


class EventPublisher:
    """Publishes for one engine. Its sockets are open from the start, its threads run from
    ``follow`` on.

    Raises OSError where an endpoint cannot be used.
    """

    def __init__(self, settings: KvEventsSettings) -> None:
        self._settings = settings
        self._queue: SimpleQueue[RecordedPass | None] = SimpleQueue()
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=settings.buffer_steps)
        self._lock = threading.Lock()  # guards ``_sent``
        self._context = zmq.Context()
        self._threads: list[threading.Thread] = []
        try:
            self._pub = self._socket(zmq.PUB, "endpoint", settings.endpoint)
            self._router = self._stopper = None
            if settings.replay_endpoint is not None:
                self._router = self._socket(
                    zmq.ROUTER, "replay_endpoint", settings.replay_endpoint, bind=True
                )
                self._stopper = self._context.socket(zmq.PAIR)
                self._stopper.bind(_STOP)
        except OSError:
            self._context.destroy(linger=0)
            raise

    def follow(self, retell: Retell, page_size: int, name_of: Callable[[int], str]) -> TreeRecorder:
        """A watcher for the tree that ``retell`` tells: whenever it is flushed, its changes are
        published. Raises ValueError as ``block_size_of`` does."""
        index = BlockIndex(block_size_of(self._settings, page_size))
        recorder = TreeRecorder(retell, self._queue, self._settings.max_queue_size, name_of)
        work = [threading.Thread(target=self._publish, args=(index,), name="srt-kv-events")]
        if self._router is not None:
            work.append(threading.Thread(target=self._answer, name="srt-kv-replay"))
        for thread in work:
            thread.daemon = True
            thread.start()
        recorder.flush()
        self._threads = work
        return recorder

    def close(self) -> None:
        """Send what is queued, and end. Safe to call twice."""
        self._queue.put(None)
        if self._stopper is not None and self._threads and not self._stopper.closed:
            self._stopper.send(b"")
        for thread in self._threads:
            thread.join(timeout=10.0)
        self._threads = []
        self._context.destroy(linger=100)

    def _socket(self, kind: int, name: str, endpoint: str, bind: bool = False) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set_hwm(self._settings.hwm)
        bind = bind or endpoint.startswith("ipc://") or "*" in endpoint or "::" in endpoint
        try:
            (socket.bind if bind else socket.connect)(endpoint)
        except zmq.ZMQError as error:
            action = "bound" if bind else "connected"
            raise OSError(
                f"--kv-events-config: {name} {endpoint!r} cannot be {action}: {error.strerror}; "
                "choose another address or port"
            ) from error
        return socket

    def _publish(self, index: BlockIndex) -> None:
        encode, topic = msgspec.msgpack.Encoder().encode, self._settings.topic.encode()
        number = 0
        while (recorded := self._queue.get()) is not None:
            number += recorded.dropped
            events = index.events(recorded.changes)
            if not events:
                continue
            payload = encode(EventBatch(time.time(), events, 0))
            with self._lock:
                self._sent.append((number, payload))
            self._pub.send_multipart([topic, number.to_bytes(8, "big"), payload])
            number += 1

    def _answer(self) -> None:
        assert self._router is not None
        stop: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        stop.connect(_STOP)
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(stop, zmq.POLLIN)
        while stop not in (ready := dict(poller.poll())):
            if self._router in ready:
                self._replay(self._router, self._router.recv_multipart())
        stop.close(linger=0)

    def _replay(self, router: zmq.Socket[bytes], frames: list[bytes]) -> None:
        """Answer one request: the client's identity, an empty frame where it is a REQ socket, and
        the first number wanted."""
        *address, wanted = frames
        if len(wanted) != 8 or len(address) not in (1, 2):
            log.warning("a replay was requested with %d frames; it is ignored", len(frames))
            return
        first = int.from_bytes(wanted, "big")
        with self._lock:
            kept = [(number, payload) for number, payload in self._sent if number >= first]
        for number, payload in kept:
            router.send_multipart([*address, number.to_bytes(8, "big"), payload])
        router.send_multipart([*address, END, b""])
