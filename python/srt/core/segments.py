"""Segments: texts of a context that are encoded side by side (parallel encoding).

In a plain context, which has no segments, every token sees all tokens before it. Tokens of a
segment see only the first ``sees`` tokens of the context and earlier tokens of the segment.

    tokens      P P P  a a  b b b  T T
    index       0 1 2  3 4  5 6 7  8 9
    segments           (3, 3)              a sees everything before it
                            (5, 3)         b sees everything but a
                                   (8, 8)  T sees everything
    position    0 1 2  3 4  3 4 5  8 9

The *view* of a token is the list of tokens that it sees; its position is its index in the view. A
segment is either *opening*, if it sees everything before it, or a *sibling*, if it sees the same
tokens as the last opening segment. So the KV of token ``i`` depends only on
``key(tokens, segments)[: i + 1]``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from sglang.srt.core.ints import Ints, ints

# Bits of a key, above every token id.
OPENS = 1 << 29
SIBLING = 1 << 30
# Most entries in the views of all segments of a context, since one pass may contain all segments.
MAX_SEEN = 1 << 24


class Segment(NamedTuple):
    """Tokens from ``start`` to the next segment; each sees ``[0, sees)`` and from ``start`` on."""

    start: int
    sees: int


Segments = tuple[Segment, ...]
_BEGINNING = Segment(0, 0)
_start = attrgetter("start")


def key(tokens: Ints, segments: Segments) -> Ints:
    """Return the key of cached KV: the tokens, with a mark on the first of each segment.

    Without segments the key is ``tokens`` itself. The prefix before the first segment has the same
    key as in a plain context, so its KV is shared.
    """
    if not segments:
        return tokens
    marked = tokens[:]
    for segment in segments:
        if segment.start < len(marked):
            marked[segment.start] |= OPENS if segment.sees == segment.start else SIBLING
    return marked


def unmarked(key: Ints) -> Ints:
    """Return the token ids of a part of a key; -1 for images and videos (``core/media_marks``)."""
    return ints(token & (OPENS - 1) if token >= 0 else -1 for token in key)


def split(segments: Segments, start: int, end: int) -> Iterator[tuple[int, int, Segment]]:
    """Split ``[start, end)`` into runs (start, end, segment) of one segment each, in order."""
    after = bisect_right(segments, start, key=_start)
    while start < end:
        segment = segments[after - 1] if after else _BEGINNING
        stop = min(end, segments[after].start) if after < len(segments) else end
        yield start, stop, segment
        start = stop
        after += 1


def cut(segments: Segments, length: int) -> Segments:
    """Return the segments of the first ``length`` tokens, and one that begins right after them."""
    return segments[: bisect_right(segments, length, key=_start)]


def verify(segments: Segments, length: int, page_size: int) -> None:
    """Raise ValueError if a context of ``length`` tokens cannot have these segments."""
    if not segments:
        return
    if page_size != 1:
        raise ValueError(
            f"texts side by side need pages of 1 token and the page size is {page_size}; start the "
            "server with --page-size 1"
        )
    opened, previous, seen = 0, 0, 0
    for start, sees in segments:
        if not previous < start <= length:
            raise ValueError(f"a segment at {start} after {previous} in {length} tokens")
        if sees == start:
            opened = start
        elif sees != opened:
            raise ValueError(f"a segment sees {sees} tokens; {start} or {opened} would be possible")
        previous = start
        seen += sees
    if seen > MAX_SEEN:
        raise ValueError(
            f"{len(segments)} texts side by side see {seen} tokens before them, each counted for "
            f"itself; at most {MAX_SEEN}: give fewer texts or a shorter beginning"
        )


def verify_score(segments: Segments, start: int) -> None:
    """Raise ValueError if log-probabilities from token ``start`` on include a token that does not
    see all tokens before it."""
    last = segments[-1].start if segments else 0
    if 0 <= start < last:
        raise ValueError(
            f"log-probabilities of the prompt from token {start} on would reach into texts that "
            f"are encoded side by side; begin at {last} or later"
        )
