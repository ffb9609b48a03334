"""Durations: predicts how long tool calls take, learnt by owner and tool.

InferCept estimates that a call will last as long as it has lasted already (section 4.4). If calls
of the same tool were seen, the estimate here is a *median*: of the remaining times of those calls
that lasted longer than the elapsed time. The waste of a preserved context is linear in the
remaining time, which suggests the mean. But one call that never returned among sixty short ones
would multiply a mean, and the decision is whether the context will go on soon: at the median time
the chances are even.

The estimate is a weighted geometric mean of three sources, so that errors by a factor of ten up and
down have equal weight. Their weights:

    calls that lasted longer   their number
    the client's hint          HINT / (1 + calls seen); 0 once the call has lasted longer
    InferCept's estimate       1 / (1 + calls that lasted longer), times the share of calls that did
                               not: a single long call among many says little

Without such calls and without a hint, the estimate is InferCept's.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque

PAIRS = 1024  # most pairs of owner and tool; the least recently used is dropped first
CALLS = 64  # number of last calls that are kept of a pair
HINT = 2.0  # weight of a hint before any call was seen
SHORTEST, LONGEST = 1e-6, 1e9  # bounds, in seconds, to which durations are clamped


class Durations:
    """Seconds of calls, by owner and tool.

    Args:
        pairs: most pairs of owner and tool to keep.
        calls: number of last calls to keep of each pair.
    """

    def __init__(self, pairs: int = PAIRS, calls: int = CALLS) -> None:
        self._most_pairs, self._most_calls = pairs, calls
        self._pairs: OrderedDict[tuple[str, str], RecentCalls] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of pairs of owner and tool that are kept."""
        return len(self._pairs)

    def add(self, owner: str, tool: str, seconds: float) -> None:
        """Learn from a call that has ended, or whose deadline has passed, after ``seconds``.
        Negative and infinite times are ignored."""
        if not 0 <= seconds < math.inf:
            return
        pair = (owner, tool)
        calls = self._pairs.get(pair)
        if calls is None:
            if len(self._pairs) >= self._most_pairs:
                self._pairs.popitem(last=False)
            calls = self._pairs[pair] = RecentCalls(self._most_calls)
        self._pairs.move_to_end(pair)
        calls.add(min(max(seconds, SHORTEST), LONGEST))

    def remaining(self, owner: str, tool: str, elapsed: float, expected: float = 0.0) -> float:
        """Return the seconds that a call will probably still take.

        Args:
            elapsed: seconds that the call has taken so far.
            expected: the client's estimate of the whole duration in seconds; 0: none.
        """
        elapsed = max(elapsed, 0.0)
        calls, pair = None, (owner, tool)
        if pair in self._pairs:
            self._pairs.move_to_end(pair)
            calls = self._pairs[pair]
        seen = len(calls) if calls is not None else 0
        hinted = HINT / (1 + seen) if elapsed < expected < math.inf else 0.0
        left, longer = calls.left(elapsed) if calls is not None else (0.0, 0)
        if not longer and not hinted:
            return elapsed
        weights, logs = hinted, hinted * math.log(expected - elapsed) if hinted else 0.0
        if longer:
            weights, logs = weights + longer, logs + longer * math.log(left)
        outlived = (seen - longer) / max(seen, 1) / (1 + longer)
        if outlived and elapsed:
            weights, logs = weights + outlived, logs + outlived * math.log(elapsed)
        return math.exp(logs / weights)


class RecentCalls:
    """The last durations of one tool, in seconds.

    Args:
        most: number of durations to keep.
    """

    __slots__ = ("_last", "_sorted")

    def __init__(self, most: int) -> None:
        self._last: deque[float] = deque(maxlen=most)
        self._sorted = array("d")

    def __len__(self) -> int:
        return len(self._last)

    def add(self, seconds: float) -> None:
        """Add a duration, and drop the oldest if there are more than ``most``."""
        if len(self._last) == self._last.maxlen:
            del self._sorted[bisect_left(self._sorted, self._last[0])]
        self._last.append(seconds)
        insort(self._sorted, seconds)

    def left(self, elapsed: float) -> tuple[float, int]:
        """Return the median of the remaining times at ``elapsed`` of calls longer than that, and
        the number of these calls. The median is above 0; (0, 0) if there are no such calls."""
        first = bisect_right(self._sorted, elapsed)
        longer = len(self._sorted) - first
        if not longer:
            return 0.0, 0
        low, high = first + (longer - 1) // 2, first + longer // 2
        return (self._sorted[low] + self._sorted[high]) / 2 - elapsed, longer
