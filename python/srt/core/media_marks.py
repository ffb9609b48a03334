"""Marks of media: an image or a video inside a context, as the model's vision tower reads it.

A prompt holds a run of placeholder tokens for each; the hidden states that the tower makes of the
pixels stand in for their embeddings. The key of such a token's KV in the cache is not its id, which
is the same for all images, but a *mark* of the content: the same image at the same position is
encoded and computed once (SGLang paper, section 6.2).

A mark has 29 bits, too few for a digest: of some ten thousand images at one position two would
begin alike. So contents are numbered as they come (``Numbers``), and all marks of one are its
number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from operator import attrgetter

import msgspec
from sglang.srt.core.ints import Ints, ints

_start = attrgetter("start")
MARK = -(1 << 31)  # the sign bit: below every token id
NUMBERS = 1 << 29  # the bits above are for segments (``core/segments``)
KEY_BYTES = 16


class MediaSpan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One image or video of a context.

    Attributes:
        start: index of its first placeholder among the context's tokens.
        count: placeholders, one for each hidden state that the tower makes.
        key: digest of the content and of how it was prepared, 16 bytes; equal ones have equal
            counts.
        kind: "image" or "video".
        shape: of the pixels, uint8, as the model's processor makes them.
        pixels: their bytes.
        grid: patches along time, height and width of the whole, as the placeholders stand for them.
        size: (width, height) of the picture it was made from.
        tick: positions from one step of a video's time to the next (``core/places``).
    """

    start: int
    count: int
    key: bytes
    kind: str
    shape: tuple[int, ...]
    pixels: bytes
    grid: tuple[int, int, int] = (1, 1, 1)
    size: tuple[int, int] = (0, 0)
    tick: float = 1.0

    @property
    def end(self) -> int:
        return self.start + self.count


Medias = tuple[MediaSpan, ...]


class Numbers:
    """A number for each content, no two alike. The ``most`` used last are remembered; another has
    a new number when it comes again, and meets nothing of its own in the cache."""

    def __init__(self, most: int = 1 << 16) -> None:
        self._most = most
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._next = 0

    def of(self, key: bytes) -> int:
        number = self._known.pop(key, -1)
        if number < 0:
            number, self._next = self._next, (self._next + 1) % NUMBERS
        self._known[key] = number
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return number

    def forget(self, key: bytes) -> None:
        """Give the content another number: its cached KV is matched no more."""
        self._known.pop(key, None)


def marked(tokens: Ints, media: Sequence[MediaSpan], numbers: Numbers) -> Ints:
    """The tokens up to the end of the last medium, marks in place of its placeholders."""
    out = tokens[: media[-1].end] if media else ints()
    for medium in media:
        end = min(medium.end, len(out))
        out[medium.start : end] = ints([MARK | numbers.of(medium.key)]) * (end - medium.start)
    return out


def within(media: Sequence[MediaSpan], start: int, end: int) -> Iterator[MediaSpan]:
    """Media with placeholders among the tokens ``[start, end)``."""
    for medium in media[max(0, bisect_right(media, start, key=_start) - 1) :]:
        if medium.start >= end:
            break
        if medium.end > start:
            yield medium


def cut(media: Medias, length: int) -> Medias:
    """Media that begin among the first ``length`` tokens."""
    return tuple(medium for medium in media if medium.start < length)


def verify(media: Sequence[MediaSpan], length: int) -> None:
    """Raise ValueError where a context of ``length`` tokens cannot have these."""
    end = 0
    for medium in media:
        if medium.count < 1 or medium.start < end or medium.end > length:
            raise ValueError(
                f"{medium.kind} tokens [{medium.start}, {medium.end}) do not follow {end} in a "
                f"prompt of {length} tokens"
            )
        if len(medium.key) != KEY_BYTES:
            raise ValueError(
                f"the key of an {medium.kind} has {len(medium.key)} bytes, not {KEY_BYTES}"
            )
        end = medium.end
