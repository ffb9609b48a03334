"""VerbQueue: verbs of one front that wait for their turn, undecoded as long as possible."""

from __future__ import annotations

import math
from collections import deque

import msgspec
from sglang.srt.core.messages import Verb, decode_verbs
from sglang.srt.remote.front_numbers import engine_wide
from sglang.srt.remote.remote_frames import FrameError

MAX_WAITING = 2 << 30  # bytes of frames that were not decoded


class VerbQueue:
    """Frames of verbs in, verbs with engine-wide numbers out.

    Attributes:
        credit: cost of the verbs that may go before another front's turn; below 0: owed.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._frames: deque[bytes] = deque()
        self._ahead = math.inf  # seconds that this machine's clock is ahead of the front's
        self._bytes = 0
        self._verbs: deque[Verb] = deque()
        self.credit = 0

    def __bool__(self) -> bool:
        return bool(self._verbs or self._frames)

    def put(self, body: bytes, since: float) -> None:
        """Take a frame's list of verbs. ``since``: seconds from its sending, by the front's
        monotonic clock, to its reading, by this machine's. Raises FrameError.

        A frame may wait for a long forward pass until it is read, so the least of these seconds
        says best how far the clocks are apart.
        """
        if not math.isfinite(since):
            raise FrameError("a frame that was sent at no time")
        self._ahead = min(self._ahead, since)
        self._bytes += len(body)
        if self._bytes > MAX_WAITING:
            raise FrameError(
                f"{self._bytes} bytes of messages wait for the engine; {MAX_WAITING} may"
            )
        self._frames.append(body)

    def pop(self) -> Verb | None:
        """Return the next verb; None where there is none. Raises FrameError for a frame that is no
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
