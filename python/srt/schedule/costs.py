"""Costs: duration of forward passes and of KV copies, learnt from the results of passes.

InferCept's T_fwd is a line here, ``base + token * q`` for a pass of q tokens, and T_swap is
``q / link`` (InferCept, section 3.2, and its profiler). Both are fitted to the last passes, some
hundred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FORGET = 0.99  # factor of the weight of earlier passes, at each pass
LINK = 25.0  # tokens a millisecond of copies, assumed before any copy was measured
DISK = 100.0  # tokens a millisecond of disk reads, assumed high, so that the disk is tried
RECOVERY = 0.01  # share of the difference to ``LINK`` that each pass removes


@dataclass(slots=True)
class LineFit:
    """Least squares fit of ``y = a + b x`` in which old points lose weight exponentially.

    Attributes:
        a, b: coefficients, never below 0.
    """

    a: float
    b: float
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # the sums of 1, x, xx, y, xy

    def add(self, x: float, y: float) -> None:
        """Add a point and fit the line again."""
        new = (1.0, x, x * x, y, x * y)
        self._sums = [FORGET * old + value for old, value in zip(self._sums, new)]
        count, sx, sxx, sy, sxy = self._sums
        spread = count * sxx - sx * sx
        mean = sy / count
        if spread > 1e-6 * max(sxx, 1e-12):  # the points differ in x
            self.b = max((count * sxy - sx * sy) / spread, 0.0)
        self.a = mean - self.b * sx / count
        if self.a < 0:  # a line through the origin fits best
            self.a, self.b = 0.0, sxy / max(sxx, 1e-12)

    def at(self, x: float) -> float:
        """Return the line's y at ``x``."""
        return self.a + self.b * x


@dataclass(slots=True)
class PassTimes:
    """Milliseconds of passes by KV size and prompt tokens, for latency targets.

    Attributes:
        decode: milliseconds of a decode-only pass, as a line over the tokens of KV in use.
        prompt: milliseconds that each prompt token adds to such a pass.
        passes: number of measured decode-only passes.
    """

    decode: LineFit = field(default_factory=lambda: LineFit(0.0, 0.0))
    prompt: float = 0.05
    passes: int = 0

    def add(self, held: int, prompt: int, ms: float) -> None:
        """Learn from a pass with ``prompt`` prompt tokens while ``held`` KV tokens were in use."""
        if not prompt:
            self.passes += 1
            self.decode.add(held, ms)
        elif self.passes:
            self.prompt += 0.1 * (max(ms - self.decode.at(held), 0.0) / prompt - self.prompt)


@dataclass(slots=True)
class Costs:
    """Milliseconds of passes and of copies.

    Attributes:
        forward: milliseconds of a pass, by its tokens.
        copy: milliseconds of a pass's copies between device and host memory, by their tokens.
        disk: milliseconds of a read from disk, by its tokens.
    """

    forward: LineFit = field(default_factory=lambda: LineFit(10.0, 0.05))
    copy: LineFit = field(default_factory=lambda: LineFit(0.0, 1 / LINK))
    disk: LineFit = field(default_factory=lambda: LineFit(0.0, 1 / DISK))

    @property
    def link(self) -> float:
        """Tokens a millisecond that can be copied between the device and host memory."""
        return 1 / max(self.copy.b, 1e-9)

    def copyable(self, tokens: int) -> int:
        """Return the tokens whose copies take as long as a pass of ``tokens`` tokens: N of
        T_swap(N) = T_fwd(B)."""
        return int(self.link * max(self.forward.at(tokens) - self.copy.a, 0.0))

    def computed(self, tokens: int, seconds: float) -> None:
        """Learn from a pass of ``tokens`` tokens; ``seconds`` exclude its copies. A pass that only
        copied pages is ignored.

        If copies were measured as slower than ``LINK``, the estimate moves back a little with each
        pass. Otherwise a few slow copies on a busy machine could make the estimate too slow to
        copy even a page, and no copy would be measured again.
        """
        if tokens and 0 < seconds < math.inf:
            self.forward.add(tokens, 1e3 * seconds)
            self.copy.a *= 1 - RECOVERY
            self.copy.b += RECOVERY * min(1 / LINK - self.copy.b, 0.0)

    def copied(self, tokens: int, seconds: float) -> None:
        """Learn from the copies of a pass: ``tokens`` tokens, both directions together."""
        if 0 < seconds < math.inf:
            self.copy.add(tokens, 1e3 * seconds)

    def computing(self, tokens: int, chunk: int) -> float:
        """Return the milliseconds of computing ``tokens`` tokens in passes of ``chunk``."""
        passes = math.ceil(tokens / chunk) if chunk > 0 else 1
        return passes * self.forward.a + tokens * self.forward.b

    def read_sooner(self, tokens: int, instead: int, chunk: int) -> bool:
        """Return whether reading ``tokens`` tokens from disk takes less time than computing
        ``instead`` tokens in passes of ``chunk``. Each False lowers the estimated time of the disk
        a little, so that the disk is tried again."""
        sooner = self.disk.at(tokens) + self.copy.at(instead) < self.computing(instead, chunk)
        if not sooner:
            self.disk.a *= 1 - RECOVERY
            self.disk.b *= 1 - RECOVERY
        return sooner

    def was_read(self, tokens: int, seconds: float) -> None:
        """Learn from a disk read of ``tokens`` tokens."""
        if tokens and 0 < seconds < math.inf:
            self.disk.add(tokens, 1e3 * seconds)
