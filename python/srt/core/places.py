"""Positions of tokens in three parts, time, height and width (M-RoPE; Qwen2-VL, section
2.1), for models whose rotary embedding has sections.

A text token's three parts are equal. The parts of an image placeholder are the time, row and column
of its patch, plus the position where the image begins. The text after the image continues after
the largest of these numbers. So an image takes fewer positions than it has tokens; a video whose
frames are far apart in time may take more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.media_marks import MediaSpan


def places(media: Sequence[MediaSpan], start: int, end: int) -> Ints:
    """Return the positions of tokens ``[start, end)``: all times, all heights, all widths,
    [3 * (end - start)]. Empty if no medium begins before ``end``: then each token's three parts
    are its index."""
    if not media or media[0].start >= end:
        return ints()
    parts = (ints(), ints(), ints())
    index, shift = start, 0  # a text token's position is its index + shift
    for medium in media:
        if medium.start >= end:
            break
        _text(parts, index + shift, medium.start + shift)
        first, last = max(index, medium.start), min(end, medium.end)
        if first < last:
            base, chosen = medium.start + shift, slice(first - medium.start, last - medium.start)
            for part, offsets in zip(parts, _offsets(medium)):
                part.extend(base + offset for offset in offsets[chosen])
        index = max(index, last)
        shift += _span(medium) - medium.count
    _text(parts, index + shift, end + shift)
    return parts[0] + parts[1] + parts[2]


def reach(media: Sequence[MediaSpan], length: int) -> int:
    """Return the position after a context of ``length`` tokens that contains all ``media``."""
    return length + sum(_span(medium) - medium.count for medium in media)


def _text(parts: Sequence[Ints], start: int, end: int) -> None:
    for part in parts:
        part.extend(range(start, end))


def _span(medium: MediaSpan) -> int:
    """Return the number of positions that an image or video takes."""
    steps, rows, columns = medium.grid
    return max(_time(medium, steps - 1) + 1, rows, columns)


def _time(medium: MediaSpan, step: int) -> int:
    """Return ``step * tick``, multiplied and cut to an integer in float32 like the reference."""
    return int(array("f", (step * medium.tick,))[0])


def _offsets(medium: MediaSpan) -> tuple[Ints, Ints, Ints]:
    """Return times, heights and widths of a medium's placeholders, each counted from 0."""
    steps, rows, columns = medium.grid
    times = [_time(medium, step) for step in range(steps)]
    return (
        ints(time for time in times for _ in range(rows * columns)),
        ints(row for row in range(rows) for _ in range(columns)) * steps,
        ints(range(columns)) * (rows * steps),
    )
