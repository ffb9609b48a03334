"""Positions of tokens in three parts, time, height and width (M-RoPE; Qwen2-VL, section
2.1), for models whose rotary embedding has sections.

A text token's three parts are the same. A placeholder of an image stands where its patch does,
counted from where the image begins, and the text after it goes on after the largest of its
positions. So an image takes fewer positions than it has tokens; a video whose frames lie far apart
may take more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.media_marks import MediaSpan


def places(media: Sequence[MediaSpan], start: int, end: int) -> Ints:
    """Positions of the tokens ``[start, end)``: all times, all heights, all widths,
    [3 * (end - start)]; empty where no medium begins before ``end``, since each token's are its
    index then."""
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
    """One more than the largest position of a context of ``length`` tokens with all of these."""
    return length + sum(_span(medium) - medium.count for medium in media)


def _text(parts: Sequence[Ints], start: int, end: int) -> None:
    for part in parts:
        part.extend(range(start, end))


def _span(medium: MediaSpan) -> int:
    """Number of positions that a medium takes."""
    steps, rows, columns = medium.grid
    return max(_time(medium, steps - 1) + 1, rows, columns)


def _time(medium: MediaSpan, step: int) -> int:
    """Multiplied and cut in float32, as the reference implementation does."""
    return int(array("f", (step * medium.tick,))[0])


def _offsets(medium: MediaSpan) -> tuple[Ints, Ints, Ints]:
    """Times, heights and widths of its placeholders, counted from 0."""
    steps, rows, columns = medium.grid
    times = [_time(medium, step) for step in range(steps)]
    return (
        ints(time for time in times for _ in range(rows * columns)),
        ints(row for row in range(rows) for _ in range(columns)) * steps,
        ints(range(columns)) * (rows * steps),
    )
