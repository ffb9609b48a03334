"""Stops: where a text ends that was to end at the first of some stop strings."""

from __future__ import annotations

from collections.abc import Sequence


def cut(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return the offset of the first complete stop, and the stop; None where there is none.

    The first to be complete, not the first to begin: a model that stops while it writes has written
    no further. Of two that end together the longer one counts.
    """
    found = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1:] if found else None


def held(text: str, stops: Sequence[str]) -> int:
    """Return the number of last characters of a growing ``text`` that may begin a stop."""
    longest = max(map(len, stops), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(len(stop) > size and stop.startswith(text[-size:]) for stop in stops):
            return size
    return 0
