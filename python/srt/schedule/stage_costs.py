"""Stage costs: predicted milliseconds of a pass on one pipeline stage, learnt from past passes.

A pass of n tokens takes ``max(floor, base + token n) + context Σ(L + x) + attention Σ(2 L x + x²)``
milliseconds; the sums run over its rows, each of x tokens after L context tokens. Below the *knee*
a pass takes the time to read the weights (``floor``), and further tokens cost nothing. gLLM
(section 6) notes that its token counts neglect the quadratic term.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sglang.srt.core.batch import Batch

KEPT = 8  # last passes kept of each size class; classes double in size
EVERY = 8  # passes between two fits
NEAR = 1.15  # a pass below this multiple of the floor is bound by reading the weights
WARM = 8  # measured passes before predictions are used
_SCALES = (1.0, 100.0, 1e4, 1e6)  # usual sizes of 1, n, Σ(L + x), Σ(2 L x + x²)


class PassWork(NamedTuple):
    """Sizes of a pass: n, Σ(L + x) and Σ(2 L x + x²)."""

    tokens: int
    context: int
    attention: int

    @staticmethod
    def of(batch: Batch) -> PassWork:
        """Return the work of a batch."""
        tokens = context = attention = 0
        for row in batch.rows:
            count, end = len(row.tokens), row.start + len(row.tokens)
            tokens += count
            context += end
            attention += count * (row.start + end)
        return PassWork(tokens, context, attention)


@dataclass(slots=True)
class StageCost:
    """Milliseconds of passes on one stage, fitted to the last passes of every size class.

    The floor is the median of the smallest passes. Passes clearly above the floor are fitted by
    least squares of the relative errors, with coefficients of at least 0.

    Attributes:
        passes: number of measured passes.
        usual: smoothed milliseconds of a pass.
        error: smoothed relative error of the predictions made before each measurement.
    """

    floor: float = 0.0
    base: float = 0.0
    token: float = 0.0
    context: float = 0.0
    attention: float = 0.0
    passes: int = 0
    usual: float = 0.0
    error: float = 0.0
    _last: dict[int, deque[tuple[PassWork, float]]] = field(default_factory=dict)  # by log2(n)

    @property
    def knee(self) -> float:
        """Milliseconds of tokens that an empty pass can compute without taking longer."""
        return max(self.floor - self.base, 0.0)

    def at(self, work: PassWork) -> float:
        """Return the predicted milliseconds of a pass."""
        dense = max(self.floor, self.base + self.token * work.tokens)
        return dense + self.context * work.context + self.attention * work.attention

    def chunk(self, start: int, count: int) -> float:
        """Return the milliseconds that ``count`` prompt tokens from ``start`` add to a pass."""
        return self.token * count + self.attention * count * (2 * start + count)

    def tokens(self, start: int, ms: float) -> int:
        """Return how many prompt tokens from ``start`` add at most ``ms`` to a pass."""
        linear = self.token + 2 * self.attention * start
        if self.attention * ms < 1e-9 * linear * linear:
            return int(min(ms / max(linear, 1e-9), 1 << 30))
        root = math.sqrt(linear * linear + 4 * self.attention * ms)
        return int((root - linear) / (2 * self.attention))

    def add(self, work: PassWork, ms: float) -> None:
        """Learn from a pass that took ``ms`` milliseconds."""
        if not (work.tokens and 0 < ms < math.inf):
            return
        if self.passes >= WARM:
            self.error += 0.05 * (abs(self.at(work) - ms) / ms - self.error)
        self.passes += 1
        self.usual += max(0.05, 1 / self.passes) * (ms - self.usual)
        self._last.setdefault(work.tokens.bit_length(), deque(maxlen=KEPT)).append((work, ms))
        if self.passes % EVERY == 0 or self.passes == WARM:
            for _ in range(2):  # the second fit uses the context costs of the first
                self._fit()

    def _fit(self) -> None:
        points = [
            (work, ms, ms - self.context * work.context - self.attention * work.attention)
            for last in self._last.values()
            for work, ms in last
        ]
        smallest = len(self._last[min(self._last)])
        low = sorted(dense for _, _, dense in sorted(points, key=_tokens)[:smallest])
        self.floor = max(low[len(low) // 2], 0.0)
        squares = [[0.0] * 5 for _ in range(4)]
        for work, ms, dense in points:
            if dense > NEAR * self.floor:
                x = [value / scale / ms for value, scale in zip((1, *work), _SCALES)]
                for row, value in zip(squares, x):
                    for k in range(4):
                        row[k] += value * x[k]
                    row[4] += value
        found = [value / scale for value, scale in zip(least_squares(squares), _SCALES)]
        if found[1]:
            self.base, self.token, self.context, self.attention = found
        else:  # all passes are at the floor: use the upper bound of a token's cost
            self.token = self.floor / max(work.tokens for work, _, _ in points)


def _tokens(point: tuple[PassWork, float, float]) -> int:
    return point[0].tokens


def least_squares(squares: Sequence[Sequence[float]]) -> list[float]:
    """Solve normal equations [N][N + 1] for coefficients of at least 0: the most negative
    coefficient is set to 0 and the rest solved again, until none is negative. A small ridge on the
    diagonal divides the cost among coefficients that the points cannot separate."""
    size = len(squares)
    used = list(range(size))
    while used:
        rows = [[squares[i][j] for j in used] + [squares[i][size]] for i in used]
        for k, row in enumerate(rows):
            row[k] += 1e-6 * row[k] + 1e-9
        for k, pivot in enumerate(rows):
            for row in rows:
                if row is not pivot and row[k]:
                    share = row[k] / pivot[k]
                    for j in range(k, len(row)):
                        row[j] -= share * pivot[j]
        values = [row[-1] / row[k] for k, row in enumerate(rows)]
        worst = min(range(len(used)), key=values.__getitem__)
        if values[worst] >= 0:
            found = [0.0] * size
            for i, value in zip(used, values):
                found[i] = value
            return found
        del used[worst]
    return [0.0] * size
