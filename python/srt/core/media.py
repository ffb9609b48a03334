"""Media: an image or a video inside a context, as the model's vision tower reads it.

A prompt holds a run of placeholder tokens for each; the hidden states that the tower makes of the
pixels stand in for their embeddings. What such a token's KV is found by in the cache is not its id,
which is the same for all images, but *marks* made of the content: the same image in the same place
is encoded and computed once (SGLang paper, section 6.2).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from operator import attrgetter

import msgspec

from srt.core.ints import Ints, ints

_start = attrgetter("start")
MARK = -(1 << 31)  # the sign bit: below every token id and every mark of segments


class Media(msgspec.Struct, frozen=True, omit_defaults=True):
    """One image or video of a context.

    Attributes:
        start: index of its first placeholder among the context's tokens.
        count: placeholders, one for each hidden state that the tower makes.
        key: digest of the content and of how it was prepared, 16 bytes.
        kind: "image" or "video".
        shape: of the pixels, uint8, as the model's processor makes them.
        pixels: their bytes.
        grid: patches along time, height and width of the whole, as the placeholders stand for them.
        size: (width, height) of the picture it was made from.
    """

    start: int
    count: int
    key: bytes
    kind: str
    shape: tuple[int, ...]
    pixels: bytes
    grid: tuple[int, int, int] = (1, 1, 1)
    size: tuple[int, int] = (0, 0)

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def marks(self) -> Ints:
        """What its placeholders are found by in the cache, int32 below 0, [count]."""
        words = bytearray()
        for block in range(-(-4 * self.count // 64)):
            words += blake2b(self.key + block.to_bytes(8, "little"), digest_size=64).digest()
        found = ints()
        found.frombytes(bytes(words[: 4 * self.count]))
        return ints(MARK | word for word in found)


Medias = tuple[Media, ...]


def marked(tokens: Ints, media: Medias) -> Ints:
    """The tokens, placeholders replaced by marks; ``tokens`` itself where there are none."""
    if not media:
        return tokens
    out = tokens[:]
    for medium in media:
        if medium.start < len(out):
            marks = medium.marks[: len(out) - medium.start]
            out[medium.start : medium.start + len(marks)] = marks
    return out


def within(media: Sequence[Media], start: int, end: int) -> Iterator[Media]:
    """Those with placeholders among the tokens ``[start, end)``."""
    for medium in media[max(0, bisect_right(media, start, key=_start) - 1) :]:
        if medium.start >= end:
            break
        if medium.end > start:
            yield medium


def verify(media: Sequence[Media], length: int) -> None:
    """Raise ValueError where a context of ``length`` tokens cannot have these."""
    end = 0
    for medium in media:
        if medium.count < 1 or medium.start < end or medium.end > length:
            raise ValueError(
                f"{medium.kind} tokens [{medium.start}, {medium.end}) do not follow {end} in a "
                f"prompt of {length} tokens"
            )
        if len(medium.key) != 16:
            raise ValueError(f"the key of an {medium.kind} has {len(medium.key)} bytes, not 16")
        end = medium.end
