"""VerbQueue: verbs of one front that wait for the engine. Frames are decoded only when needed."""

from __future__ import annotations

import math
from collections import deque

import msgspec
from sglang.srt.core.messages import Verb, decode_verbs
from sglang.srt.remote.front_numbers import engine_wide
from sglang.srt.remote.remote_frames import FrameError

MAX_WAITING = 2 << 30  # most bytes of undecoded frames


class VerbQueue:
    """Queue that takes frames of verbs and returns verbs with engine-wide numbers.

    Attributes:
        credit: cost of the verbs that may be sent before another front's turn; negative after an
            expensive verb.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._frames: deque[bytes] = deque()
        self._ahead = math.inf  # seconds by which this machine's clock is ahead of the front's
        self._bytes = 0
        self._verbs: deque[Verb] = deque()
        self.credit = 0

    def __bool__(self) -> bool:
        return bool(self._verbs or self._frames)

    def put(self, body: bytes, since: float) -> None:
        """Add a frame's list of verbs. ``since``: the moment of its reading, by this machine's
        monotonic clock, minus the moment of its sending, by the front's. Raises FrameError.

        A frame may wait for a long forward pass before it is read. So the smallest ``since`` is the
        best estimate of the difference between the clocks.
        """
        if not math.isfinite(since):
            raise FrameError("a frame's time of sending is not finite")
        self._ahead = min(self._ahead, since)
        self._bytes += len(body)
        if self._bytes > MAX_WAITING:
            raise FrameError(
                f"{self._bytes} bytes of messages wait for the engine; {MAX_WAITING} may"
            )
        self._frames.append(body)

    def pop(self) -> Verb | None:
        """Return the next verb, None if there is none. Raises FrameError for a frame that is not a
        list of verbs."""
        while not self._verbs and self._frames:
            body = self._frames.popleft()
            self._bytes -= len(body)
            try:
                verbs = decode_verbs(body)
                self._verbs.extend(engine_wide(verb, self._session, self._ahead) for verb in verbs)
            except (msgspec.DecodeError, ValueError) as error:
                raise FrameError(
                    f"a frame of {len(body)} bytes is no list of verbs: {error}"
                ) from None
        return self._verbs.popleft() if self._verbs else None
