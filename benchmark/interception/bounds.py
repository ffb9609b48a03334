"""Hit rates that no cache can exceed: of an infinite one, and of Belady's rule at a given size.

The references are what a run has read, turn by turn in the order in which they were answered: the
full pages of the turn's prompt, which count, then the full pages of its answer, which are written
and do not. A page is its tokens *and* all tokens before it. A prompt's page is a hit where it and
all pages before it are in the cache.

Belady's rule evicts the page that will be read furthest in the future, of those read by the same
turn the deepest. It knows the whole run. A page is read whenever one after it is, so its next use
is never later: what the rule keeps are whole beginnings, and no rule has more hits.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """The pages of one turn.

    Attributes:
        pages: numbers of the full pages of prompt and answer.
        prompt: how many of them are the prompt's.
    """

    pages: tuple[int, ...]
    prompt: int


class PageNumbers:
    """Numbers of pages, by their tokens and the page before.

    Args:
        size: tokens of a page.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._numbers: dict[tuple[int, bytes], int] = {}

    def of(self, tokens: array[int], known: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the numbers of the full pages of a context, the first of which are known."""
        found, size = list(known), self.size
        for start in range(len(found) * size, len(tokens) - size + 1, size):
            key = (found[-1] if found else -1, tokens[start : start + size].tobytes())
            found.append(self._numbers.setdefault(key, len(self._numbers)))
        return tuple(found)


def infinite(readings: Sequence[Reading]) -> int:
    """Return the hits of a cache that evicts nothing."""
    seen: set[int] = set()
    hits = 0
    for reading in readings:
        hits += _leading(reading, seen)
        seen.update(reading.pages)
    return hits


def belady(readings: Sequence[Reading], capacity: int) -> int:
    """Return the hits of Belady's rule in a cache of ``capacity`` pages."""
    never = len(readings)
    upcoming: list[array[int]] = []  # by reading: the next reading of each of its pages
    later: dict[int, int] = {}
    for index in range(len(readings) - 1, -1, -1):
        pages = readings[index].pages
        upcoming.append(array("l", [later.get(page, never) for page in pages]))
        for page in pages:
            later[page] = index
    cached: dict[int, int] = {}  # when each will be read next
    furthest: list[tuple[int, int, int]] = []  # a heap of (-next, -depth, page), some of them old
    hits = 0
    for reading in readings:
        hits += _leading(reading, cached)
        for depth, (page, at) in enumerate(zip(reading.pages, upcoming.pop())):
            cached[page] = at
            heapq.heappush(furthest, (-at, -depth, page))
        while len(cached) > capacity:
            at, _, page = heapq.heappop(furthest)
            if cached.get(page) == -at:
                del cached[page]
    return hits


def _leading(reading: Reading, cached: set[int] | dict[int, int]) -> int:
    """Return how many pages of the prompt are cached, up to the first that is not."""
    for count, page in enumerate(reading.pages[: reading.prompt]):
        if page not in cached:
            return count
    return min(reading.prompt, len(reading.pages))
