"""``Desk``: objects that the parts of a run share. Everything heavy is made at its first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from benchmark.harness.claim import Claim
from benchmark.harness.side import Side
from benchmark.models import EMBEDDED
from benchmark.paper.claims import SEEING
from benchmark.paper.plan import Record


@dataclass
class Desk:
    """``size`` is the model's (``benchmark.models.SHAPES``); ``wanted`` names contenders, none for
    all. ``logs`` is the folder of the contenders' output. ``tell`` takes records, ``say`` a line
    for the waiting user.

    Attributes:
        long: lengths as in the paper, where speed and hits are measured.
        least, most: items of a round, by mode.
        trial: items of the second small run that sizes the rounds.
        answered, counted: items whose answers are compared, whose hits are counted.
        memories: of the cache where hits are counted, as shares of what a run leaves in it.
    """

    long: ClassVar[bool] = True
    dtype: ClassVar[str] = "bfloat16"
    least: ClassVar[Mapping[str, int]] = {"throughput": 4, "latency": 2}
    most: ClassVar[Mapping[str, int]] = {"throughput": 128, "latency": 12}
    trial: ClassVar[int] = 8
    answered: ClassVar[int] = 12
    counted: ClassVar[int] = 16
    memories: ClassVar[Sequence[float]] = (1.0, 0.5)

    size: str
    seed: int
    peers: Path
    logs: Path
    tell: Callable[[Record], None]
    say: Callable[[str], None]
    wanted: Sequence[str] = ()
    _sides: list[Side] | None = field(default=None, init=False)

    def model(self) -> Path:
        """The checkpoint that speed is measured with."""
        from benchmark.harness.text_model import checkpoint

        return checkpoint(self.size)

    def seeing(self) -> Path:
        """The checkpoint for images: the same with a tower before it."""
        from benchmark.image_qa.model import checkpoint

        return checkpoint(self.size)

    def trained(self, claim: Claim) -> Path:
        """Checkpoint for a claim whose answers are compared: of images, the smallest multimodal
        one."""
        if claim.name != SEEING:
            return EMBEDDED
        from benchmark.image_qa.model import checkpoint

        return checkpoint("T", dtype="float32")

    def sides(self) -> list[Side]:
        """All contenders that can be had, ours first, started once. The others are reported."""
        if self._sides is None:
            self._sides = []
            self._start(self._sides)
        return self._sides

    def _start(self, sides: list[Side]) -> None:
        from benchmark.harness.contenders import contenders

        model = self.model()
        for contender in contenders(model, self.peers):
            if self.wanted and contender.name not in self.wanted:
                continue
            if contender.missing:
                self.out(contender.name, contender.missing, failed=False)
                continue
            self.say(f"{contender.name} starts")
            try:
                side = contender.start(self.logs)
            except Exception as error:
                # A peer that does not start is left out; the others are measured.
                self.out(contender.name, f"{type(error).__name__}: {error}", failed=True)
                continue
            side.pause()
            sides.append(side)
            self.tell({"kind": "loaded", "side": side.name, "versions": dict(side.versions)})

    def out(self, side: str, why: str, *, failed: bool, claim: str = "") -> None:
        """Tell that a side is left out, of one claim or ("") of all."""
        self.say(f"without {side}: {why}")
        self.tell({"kind": "left out", "side": side, "claim": claim, "why": why, "failed": failed})

    def close(self) -> None:
        """End the contenders that were started."""
        for side in self._sides or ():
            try:
                side.close()
            except Exception as error:
                self.say(f"{side.name} did not end: {error}")
        self._sides = None
