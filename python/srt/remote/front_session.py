"""FrontSession: a front's (server's) end of one session with an engine. It makes and reads frames,
and has no socket."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Sequence

import msgspec
from sglang.srt.core.messages import Event, Verb, decode_events, encode
from sglang.srt.remote.handshake import (
    EngineWelcome,
    Expected,
    FrontHello,
    messages_digest,
    mismatch,
)
from sglang.srt.remote.remote_frames import (
    PROTOCOL,
    FrameError,
    FrameHeader,
    FrameOrder,
    Kind,
    body_of,
    header_of,
    packed,
    text_of,
)


class Refused(Exception):
    """The engine refuses this front, or uses another protocol."""


class Ended(Exception):
    """The engine has ended the session."""


class FrontSession:
    """Maker of the frames to send, and reader of the received ones.

    Attributes:
        dropped: number of frames of other sessions, and of repeated frames.
        heard: moment of the last frame, on the monotonic clock.
    """

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._greeting = random.SystemRandom().getrandbits(64)  # the engine's answers repeat it
        self._order: FrameOrder | None = None  # once the engine has answered
        self._sent = self._strange = 0
        self.heard = time.monotonic()

    @property
    def dropped(self) -> int:
        return self._strange + (0 if self._order is None else self._order.dropped)

    def hello(self) -> bytes:
        name = f"{socket.gethostname()}:{os.getpid()}"
        hello = FrontHello(name=name, expected=self._expected, messages=messages_digest())
        return packed(Kind.HELLO, self._greeting, 0, msgspec.msgpack.encode(hello))

    def verbs(self, verbs: Sequence[Verb]) -> bytes:
        return self._next(Kind.VERBS, encode(list(verbs)))

    def leave(self) -> bytes:
        return self._next(Kind.LEAVE)

    def unsent(self) -> None:
        """Reuse the number of the last frame, because it was not sent."""
        self._sent -= 1

    def take(self, frame: bytes) -> EngineWelcome | list[Event]:
        """Return the content of a received frame: the engine's welcome, or events. A dropped frame
        has no events.

        Raises Refused, Ended, and FrameError if the session cannot continue.
        """
        try:
            header = header_of(frame)
        except FrameError:
            self._strange += 1
            return []
        if self._order is None:
            return self._answer(header, frame)
        if header.protocol != PROTOCOL or not self._order.accepts(header):
            return []
        self.heard = time.monotonic()
        if header.kind is Kind.ENDED:
            raise Ended(text_of(frame))
        if header.kind is not Kind.EVENTS:
            return []
        try:
            return decode_events(body_of(frame))
        except msgspec.DecodeError as error:
            raise FrameError(f"a frame of events cannot be decoded: {error}") from error

    def _answer(self, header: FrameHeader, frame: bytes) -> EngineWelcome | list[Event]:
        """Return the answer to HELLO. Other frames before it belong to another session; drop and
        count them. Raises Refused."""
        if header.epoch != self._greeting or header.kind not in (Kind.WELCOME, Kind.REFUSED):
            self._strange += 1
            return []
        if header.kind is Kind.REFUSED:
            raise Refused(text_of(frame))
        if reason := mismatch(header.protocol, messages_digest(), ""):
            raise Refused(reason)
        try:
            welcome = msgspec.msgpack.decode(body_of(frame), type=EngineWelcome)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"its facts cannot be read ({error}); use one version") from error
        if reason := mismatch(PROTOCOL, welcome.facts.messages, welcome.facts.arithmetic.version):
            raise Refused(reason)
        self._order, self.heard = FrameOrder(welcome.epoch), time.monotonic()
        return welcome

    def _next(self, kind: Kind, body: bytes = b"") -> bytes:
        assert self._order is not None, "no verb before the engine has answered"
        self._sent += 1
        return packed(kind, self._order.epoch, self._sent, body)
