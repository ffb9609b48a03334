"""Frames between a front (a server) and an engine on another machine: a header, then a body.

    bytes   of the header, in network order
    3       b"SGR"
    1       number of the protocol
    1       kind of the frame
    8       epoch of the session; of HELLO and its answers, a number that the front chose
    8       number of the frame: 1, 2, ... in each direction of a session
    8       seconds on the sender's monotonic clock, a float

    kind      from    body
    HELLO     front   handshake.FrontHello
    WELCOME   engine  handshake.EngineWelcome; it has the epoch of the session
    REFUSED   engine  reason of the refusal, UTF-8
    VERBS     front   a list of verbs (core/messages)
    EVENTS    engine  a list of events
    BEAT      engine  empty: a heartbeat of the engine's loop
    LEAVE     front   empty: the front ends the session
    ENDED     engine  why the session is over, UTF-8

The layouts of the header, of HELLO and of REFUSED are the same in every protocol. So two ends with
different protocols can report the mismatch.
"""

from __future__ import annotations

import struct
import time
from enum import IntEnum
from typing import NamedTuple

MAGIC = b"SGR"
PROTOCOL = 1
HEADER = struct.Struct("!3sBBQQd")


class Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    VERBS = 4
    EVENTS = 5
    BEAT = 6
    LEAVE = 7
    ENDED = 8


class FrameError(ValueError):
    """A malformed frame, or a gap in the sequence of frames."""


class FrameHeader(NamedTuple):
    """Header of a frame, except for its first three bytes."""

    protocol: int
    kind: Kind
    epoch: int
    number: int
    sent: float


def packed(kind: Kind, epoch: int, number: int, body: bytes = b"") -> bytes:
    """Return a frame, with the current moment as its time of sending."""
    return HEADER.pack(MAGIC, PROTOCOL, kind, epoch, number, time.monotonic()) + body


def header_of(frame: bytes) -> FrameHeader:
    """Read the header of a frame. Raises FrameError for a malformed one."""
    if len(frame) < HEADER.size:
        raise FrameError(f"a frame of {len(frame)} bytes; the header alone has {HEADER.size}")
    magic, protocol, kind, epoch, number, sent = HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise FrameError(f"a frame that begins with {magic!r}, not {MAGIC!r}")
    try:
        return FrameHeader(protocol, Kind(kind), epoch, number, sent)
    except ValueError:
        raise FrameError(f"a frame of kind {kind}; kinds are 1 to {max(Kind)}") from None


def body_of(frame: bytes) -> bytes:
    return frame[HEADER.size :]


def text_of(frame: bytes) -> str:
    """Return at most 1,000 characters of the body of a REFUSED or ENDED frame."""
    return body_of(frame).decode("utf-8", "replace")[:1000]


class FrameOrder:
    """Check of the sequence of frames that one end of a session receives.

    Attributes:
        epoch: number of the session.
        dropped: number of frames of other sessions, and of repeated frames.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch, self.dropped = epoch, 0
        self._next = 1

    def accepts(self, header: FrameHeader) -> bool:
        """Whether the frame is the next one. A frame of another session, or a repeated one, is
        dropped and counted. Raises FrameError if earlier frames are missing, as their content is
        lost."""
        if header.epoch != self.epoch or header.number < self._next:
            self.dropped += 1
            return False
        if header.number > self._next:
            raise FrameError(
                f"frame {header.number} came in place of frame {self._next}: frames are missing, "
                "or in another order"
            )
        self._next += 1
        return True
