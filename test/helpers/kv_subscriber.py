"""A subscriber of KV events, written from the published schema alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import zmq

Path = tuple[str, str, tuple[int, ...]]  # salt's mark, adapter, all tokens up to a block's end


class GapFound(Exception):
    """Batches are missing: from the first number to the last one."""


class Subscriber:
    """Knows the blocks of one engine. ``size``: tokens a block."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.known: dict[int, Path] = {}
        self.next = 0  # number of the next batch

    def paths(self) -> set[Path]:
        assert len(set(self.known.values())) == len(self.known), "two hashes of one block"
        return set(self.known.values())

    def take(self, events: Iterable[Any]) -> None:
        """Apply events, decoded or as structs."""
        for event in msgspec.to_builtins(list(events)):
            name, *values = event
            getattr(self, name)(*values)

    def receive(self, number: int, payload: bytes) -> None:
        """Apply a batch. Raises GapFound where others are missing before it."""
        if number < self.next:
            return
        if number > self.next:
            raise GapFound(self.next, number - 1)
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank == 0
        self.take(events)
        self.next = number + 1

    def BlockStored(
        self, hashes: list[int], parent: int | None, tokens: list[int], size: int,
        lora: int | None, medium: str, name: str | None, extra: list[Any] | None = None,
    ) -> None:  # fmt: skip
        assert (size, medium) == (self.size, "GPU")
        assert len(tokens) == size * len(hashes)
        assert (lora is None) == (name is None)
        mark, adapter = "", name or ""
        before: tuple[int, ...] = ()
        if parent is not None:
            mark, adapter, before = self.known[parent]
            assert adapter == (name or "")
        elif extra:
            [mark] = extra[0]
        path: tuple[int, ...] = before
        for i, found in enumerate(hashes):
            assert found not in self.known, "stored twice"
            assert 0 <= found < 1 << 63
            path += tuple(tokens[i * size : (i + 1) * size])
            self.known[found] = (mark, adapter, path)

    def BlockRemoved(self, hashes: list[int], medium: str) -> None:
        assert medium == "GPU"
        for found in hashes:
            del self.known[found]

    def AllBlocksCleared(self) -> None:
        self.known.clear()


def replayed(endpoint: str, first: int) -> list[tuple[int, bytes]]:
    """The batches that a publisher keeps, from number ``first`` on."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo = 0, 20_000
        socket.connect(endpoint)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        found: list[Any] = []
        while True:
            _, number, payload = socket.recv_multipart()
            value = int.from_bytes(number, "big", signed=True)
            if value == -1:
                assert payload == b""
                return found
            found.append((value, payload))
