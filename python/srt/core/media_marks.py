"""Marks of media: images and videos (*media*) inside a context, encoded by the vision tower.

A prompt has a run of placeholder tokens for each medium; hidden states of the vision tower replace
their embeddings. All placeholders have the same token id, so the cache uses another key for their
KV: a *mark* of the content. Thus the same image at the same position is encoded and computed once
(SGLang paper, section 6.2).

A mark has 29 bits, too few for a digest: among some ten thousand images two would probably be
equal. So contents are numbered as they arrive (``Numbers``), and all marks of a medium are its
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
MARK = -(1 << 31)  # the sign bit: a mark is negative, a token id is not
NUMBERS = 1 << 29  # the bits above are used by segments (``core/segments``)
KEY_BYTES = 16


class MediaSpan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One image or video of a context.

    Attributes:
        start: index of the first placeholder among the context's tokens.
        count: number of placeholders, one for each hidden state of the vision tower.
        key: digest of the content and its preprocessing, 16 bytes; media with equal keys have
            equal counts.
        kind: "image" or "video".
        shape: shape of the pixels, uint8, as made by the model's processor.
        pixels: bytes of the pixels.
        grid: number of placeholders along time, height and width.
        size: (width, height) of the original picture.
        tick: positions from one time step of a video to the next (``core/places``).
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
    """A unique number for each content. The ``most`` recently used are kept; other content gets a
    new number when it comes again, and finds no KV in the cache."""

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
        """Forget the content's number. With a new number its cached KV is not found any more."""
        self._known.pop(key, None)


def marked(tokens: Ints, media: Sequence[MediaSpan], numbers: Numbers) -> Ints:
    """Return the tokens up to the end of the last medium, with marks instead of placeholders."""
    out = tokens[: media[-1].end] if media else ints()
    for medium in media:
        end = min(medium.end, len(out))
        out[medium.start : end] = ints([MARK | numbers.of(medium.key)]) * (end - medium.start)
    return out


def within(media: Sequence[MediaSpan], start: int, end: int) -> Iterator[MediaSpan]:
    """Yield the media with placeholders among the tokens ``[start, end)``."""
    for medium in media[max(0, bisect_right(media, start, key=_start) - 1) :]:
        if medium.start >= end:
            break
        if medium.end > start:
            yield medium


def cut(media: Medias, length: int) -> Medias:
    """Return the media that begin among the first ``length`` tokens."""
    return tuple(medium for medium in media if medium.start < length)


def verify(media: Sequence[MediaSpan], length: int) -> None:
    """Raise ValueError if a context of ``length`` tokens cannot have these media."""
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
