"""Costs: how long a forward pass takes, and how fast KV travels, learnt from the passes.

InferCept's T_fwd is a line here, ``base + token * q`` for a pass of q tokens, and T_swap is
``q / link`` (InferCept, section 3.2, and its profiler). Both follow what is measured, with a memory
of some hundred passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FORGET = 0.99  # weight of all passes before, at each pass
LINK = 25.0  # tokens a millisecond, before any copy was measured
DISK = 100.0  # tokens a millisecond that a disk reads, likewise: it is tried
RECOVERY = 0.01  # share of the way back to ``LINK`` with each pass


@dataclass(slots=True)
class LineFit:
    """Least squares fit of ``y = a + b x`` in which old points count less and less.

    Attributes:
        a, b: never below 0.
    """

    a: float
    b: float
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # the sums of 1, x, xx, y, xy

    def add(self, x: float, y: float) -> None:
        """Take a point into account."""
        new = (1.0, x, x * x, y, x * y)
        self._sums = [FORGET * old + value for old, value in zip(self._sums, new)]
        count, sx, sxx, sy, sxy = self._sums
        spread = count * sxx - sx * sx
        mean = sy / count
        if spread > 1e-6 * max(sxx, 1e-12):  # else all points are at one x
            self.b = max((count * sxy - sx * sy) / spread, 0.0)
        self.a = mean - self.b * sx / count
        if self.a < 0:  # a line through the origin fits best
            self.a, self.b = 0.0, sxy / max(sxx, 1e-12)

    def at(self, x: float) -> float:
        """Return the value of the line."""
        return self.a + self.b * x


@dataclass(slots=True)
class PassTimes:
    """Milliseconds of passes by what they hold and compute, for latency targets.

    Attributes:
        decode: of a pass that generates one token for each request, by the tokens of KV held.
        prompt: that a prompt token adds to such a pass.
        passes: number of measured passes of the first kind.
    """

    decode: LineFit = field(default_factory=lambda: LineFit(0.0, 0.0))
    prompt: float = 0.05
    passes: int = 0

    def add(self, held: int, prompt: int, ms: float) -> None:
        """Learn from a pass that computed ``prompt`` tokens of prompts."""
        if not prompt:
            self.passes += 1
            self.decode.add(held, ms)
        elif self.passes:
            self.prompt += 0.1 * (max(ms - self.decode.at(held), 0.0) / prompt - self.prompt)


@dataclass(slots=True)
class Costs:
    """Milliseconds of passes and of copies.

    Attributes:
        forward: of a pass, by its tokens.
        copy: of the copies of a pass between the device and host memory, by their tokens.
        disk: of a read from disk, by its tokens.
    """

    forward: LineFit = field(default_factory=lambda: LineFit(10.0, 0.05))
    copy: LineFit = field(default_factory=lambda: LineFit(0.0, 1 / LINK))
    disk: LineFit = field(default_factory=lambda: LineFit(0.0, 1 / DISK))

    @property
    def link(self) -> float:
        """Tokens a millisecond that the link carries."""
        return 1 / max(self.copy.b, 1e-9)

    def copyable(self, tokens: int) -> int:
        """Return the tokens whose copies take as long as a pass of ``tokens`` tokens: N of
        T_swap(N) = T_fwd(B)."""
        return int(self.link * max(self.forward.at(tokens) - self.copy.a, 0.0))

    def computed(self, tokens: int, seconds: float) -> None:
        """Learn from a pass of ``tokens`` tokens without its copies. A pass that only copied pages
        says nothing.

        Copies that were measured as slower than ``LINK`` are trusted less with each pass: else a
        few of them on a busy machine could make a link too slow for a page, and it would not be
        measured again.
        """
        if tokens and 0 < seconds < math.inf:
            self.forward.add(tokens, 1e3 * seconds)
            self.copy.a *= 1 - RECOVERY
            self.copy.b += RECOVERY * min(1 / LINK - self.copy.b, 0.0)

    def copied(self, tokens: int, seconds: float) -> None:
        """Learn from the copies of a pass, of ``tokens`` tokens in both directions."""
        if 0 < seconds < math.inf:
            self.copy.add(tokens, 1e3 * seconds)

    def computing(self, tokens: int, chunk: int) -> float:
        """Return the milliseconds of computing ``tokens`` tokens in passes of ``chunk``."""
        passes = math.ceil(tokens / chunk) if chunk > 0 else 1
        return passes * self.forward.a + tokens * self.forward.b

    def read_sooner(self, tokens: int, instead: int, chunk: int) -> bool:
        """Whether reading ``tokens`` tokens from disk takes less time than computing ``instead``
        tokens in passes of ``chunk``. A disk is trusted a little more with each no, so that it is
        tried again."""
        sooner = self.disk.at(tokens) + self.copy.at(instead) < self.computing(instead, chunk)
        if not sooner:
            self.disk.a *= 1 - RECOVERY
            self.disk.b *= 1 - RECOVERY
        return sooner

    def was_read(self, tokens: int, seconds: float) -> None:
        """Learn from a read from disk."""
        if tokens and 0 < seconds < math.inf:
            self.disk.add(tokens, 1e3 * seconds)
