"""Messages between the server and the host of guests: MessagePack frames, a list of messages each.

A guest takes text and gives text. Both are JSON that the host checks for its form and size alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec

EXIT = b""  # an empty frame asks the host to exit
SOCKET, MARKS = "wire", "marks"  # files of the directory that the two share
MARK = struct.Struct("<q")  # an entry of ``MARKS``: the run that a lane works on, or 0
MOST_LANES = 128  # those of one run each included

CODES = (
    "turn_cpu", "total_cpu", "memory", "answer_bytes", "calls_bytes", "calls", "malformed", "trap",
    "replay", "host_memory", "host_lost", "killed", "wait",
)  # fmt: skip
"""Reasons why a guest was ended: a limit's name, or what went wrong."""


class GuestLimits(msgspec.Struct, frozen=True):
    """Limits of one run in the sandbox.

    Attributes:
        turn_cpu: seconds of processor time that one turn may take.
        total_cpu: seconds of processor time of all turns together.
        memory: bytes of linear memory.
        answer_bytes: UTF-8 bytes of the answers of one turn.
        calls_bytes: UTF-8 bytes of the calls of one turn.
        calls: calls of one turn.
        log_bytes: bytes of answers that are kept, so that the run survives the loss of its host.
    """

    turn_cpu: float = 1.0
    total_cpu: float = 60.0
    memory: int = 64 << 20
    answer_bytes: int = 8 << 20
    calls_bytes: int = 4 << 20
    calls: int = 4096
    log_bytes: int = 8 << 20


class LoggedTurn(msgspec.Struct, frozen=True):
    """A logged turn: the answers that began it, and a digest of the calls that ended it."""

    answers: str
    digest: bytes


class GuestImage(msgspec.Struct, frozen=True):
    """Everything that a run depends on, except for its answers.

    Attributes:
        path: file of the precompiled component or module; the server made it.
        component: whether it is a component; else a core module.
        source: text of the program, for a runner.
        arguments: JSON object that the program is started with.
        seed: of the random bytes that the program gets.
    """

    path: str
    component: bool
    source: str
    arguments: str
    seed: bytes


class LaunchGuest(msgspec.Struct, frozen=True, tag=True):
    """Start a guest, or rebuild it by its logged turns, the start first.

    Attributes:
        used: seconds of processor time that it took before.
        alone: it gets a thread of its own, in which it may wait inside of a turn.
        tenant: a thread that several share gives each of them a turn in order.
    """

    run: int
    guest: GuestImage
    limits: GuestLimits
    log: tuple[LoggedTurn, ...] = ()
    used: float = 0.0
    alone: bool = False
    tenant: str = ""


class GiveAnswers(msgspec.Struct, frozen=True, tag=True):
    """Give a guest answers: a JSON list."""

    run: int
    answers: str


class EndGuest(msgspec.Struct, frozen=True, tag=True):
    """Forget a guest."""

    run: int


class GuestCalls(msgspec.Struct, frozen=True, tag=True):
    """A guest's turn has ended.

    Attributes:
        calls: JSON list of at most ``GuestLimits.calls`` objects.
        cpu: seconds of processor time that the turn took.
        waits: the guest is inside of a turn and holds its thread.
    """

    run: int
    calls: str
    cpu: float
    waits: bool = False


class GuestOver(msgspec.Struct, frozen=True, tag=True):
    """A guest was ended by the host.

    Attributes:
        code: one of ``CODES``.
        message: names the limit, its value and what was used.
        cpu: seconds of processor time that no earlier report has, of a turn that was cut.
    """

    run: int
    code: str
    message: str
    cpu: float = 0.0


class HostReady(msgspec.Struct, frozen=True, tag=True):
    """The first message of a host."""

    version: str


Order: TypeAlias = LaunchGuest | GiveAnswers | EndGuest
Report: TypeAlias = GuestCalls | GuestOver | HostReady

_encoder = msgspec.msgpack.Encoder()
_orders: msgspec.msgpack.Decoder[list[Order]] = msgspec.msgpack.Decoder(list[Order])
_reports: msgspec.msgpack.Decoder[list[Report]] = msgspec.msgpack.Decoder(list[Report])


def encode(messages: Sequence[Any]) -> bytes:
    """A frame of messages."""
    return _encoder.encode(messages)


def decode_orders(frame: bytes) -> list[Order]:
    """The messages of a frame to the host. Raises msgspec.DecodeError."""
    return _orders.decode(frame)


def decode_reports(frame: bytes) -> list[Report]:
    """The messages of a frame from the host. Raises msgspec.DecodeError."""
    return _reports.decode(frame)


def digest(calls: str) -> bytes:
    """Digest of a turn's calls."""
    return blake2b(calls.encode(), digest_size=16).digest()
