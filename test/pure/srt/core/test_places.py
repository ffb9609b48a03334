"""Positions in three parts, against a plain reading of their definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.core.places import places, reach


def medium(start: int, grid: tuple[int, int, int], tick: float = 1.0) -> MediaSpan:
    count = grid[0] * grid[1] * grid[2]
    return MediaSpan(start, count, bytes(16), "video", (1,), b"", grid=grid, tick=tick)


def plainly(media: list[MediaSpan], length: int) -> list[tuple[int, int, int]]:
    """Token after token."""
    out: list[tuple[int, int, int]] = []
    index = 0
    while index < length:
        first = max((max(place) for place in out), default=-1) + 1
        here = [m for m in media if m.start == index]
        if not here:
            out.append((first, first, first))
            index += 1
            continue
        steps, rows, columns = here[0].grid
        out += [
            (first + int(step * here[0].tick), first + row, first + column)
            for step in range(steps)
            for row in range(rows)
            for column in range(columns)
        ]
        index = len(out)
    return out


@st.composite
def contexts(draw: st.DrawFn) -> tuple[list[MediaSpan], int]:
    media: list[MediaSpan] = []
    length = draw(st.integers(0, 4))
    for _ in range(draw(st.integers(0, 3))):
        side = st.integers(1, 4)
        grid = (draw(side), draw(side), draw(side))
        media.append(medium(length, grid, draw(st.sampled_from([1.0, 0.5, 2.0, 7.25]))))
        length = media[-1].end + draw(st.integers(0, 4))
    return media, length + draw(st.integers(1, 3))


@given(contexts(), st.data())
def test_any_run_of_tokens_has_its_places(
    context: tuple[list[MediaSpan], int], data: st.DataObject
) -> None:
    media, length = context
    want = plainly(media, length)
    start = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(start + 1, length))
    got = places(media, start, end)
    if not got:
        got_rows = [(i, i, i) for i in range(start, end)]
    else:
        n = end - start
        got_rows = list(zip(got[:n], got[n : 2 * n], got[2 * n :]))
    assert got_rows == want[start:end]
    assert reach(media, length) == max(max(place) for place in want) + 1


def test_an_example() -> None:
    """Three steps of two by two patches, 50 positions apart, between two words."""
    got = places([medium(1, (3, 2, 2), 50.0)], 0, 14)
    assert list(got[:14]) == [0, *[1] * 4, *[51] * 4, *[101] * 4, 102]
    assert list(got[14:28]) == [0, *[1, 1, 2, 2] * 3, 102]
    assert list(got[28:]) == [0, *[1, 2] * 6, 102]


def test_text_alone_needs_none() -> None:
    assert not places([], 0, 5)
    assert not places([medium(5, (1, 2, 2))], 0, 5)


def test_times_are_cut_as_the_reference_cuts_them() -> None:
    """Float32 arithmetic: 5 * 1.6 is 8 there, and 3 * 1.4666667 is 4.4000001."""
    got = places([medium(0, (6, 1, 1), 1.6)], 0, 6)
    assert list(got[:6]) == [0, 1, 3, 4, 6, 8]
