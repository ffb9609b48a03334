"""Smoke: every claim, ablation and table on very little and the trained model, in this process but
for one server, which is what plain client code asks. Answers must be equal everywhere.

What it measures is no figure to be believed; that all of it runs, and says the same, is the point.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmark.api_speculation.bill import both
from benchmark.harness import ablations
from benchmark.harness.claim import Claim, Scale
from benchmark.harness.server import Server
from benchmark.harness.side import Plain, Side
from benchmark.image_qa.model import checkpoint
from benchmark.models import EMBEDDED
from benchmark.paper import claims, parts, report
from benchmark.paper.alone import compared, same_answers
from benchmark.paper.desk import Desk
from benchmark.paper.parts import Work
from benchmark.paper.plan import Part, Plan
from benchmark.paper.records import Log
from benchmark.peers.child import ROOT

SECONDS = 120.0
START_SECONDS = 60.0
FORKED, CONSTRAINED = "llm_judge", "json_regex"
"""Programs of the ablations. One forks branches after a common prefix, the other constrains its
texts by a pattern, so that every ablation has something to change."""


def smoke(say: Callable[[str], None]) -> int:
    """1 where an answer differs or a part failed."""
    with tempfile.TemporaryDirectory() as folder:
        small = Small(Path(folder), say)
        try:
            Plan(small.parts(), SECONDS, small.tell, say).run()
        finally:
            small.end()
        wrong = small.finished()
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


class Small(Desk):
    """The embedded model; a server of ours, started once, in place of the contenders."""

    long, dtype = False, "float32"
    least = most = {"throughput": 2, "latency": 1}  # noqa: RUF012
    trial = answered = counted = 2
    memories = (1.0,)

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.log = Log(folder / "paper.jsonl", again=False)
        super().__init__("embedded", 0, folder, folder, self.log.tell, say)
        self._server: Server | None = None

    def parts(self) -> list[Part]:
        return parts.parts(self, (), WORKS)

    def model(self) -> Path:
        return EMBEDDED

    def seeing(self) -> Path:
        return checkpoint("T", self.peers, dtype="float32")

    def trained(self, claim: Claim) -> Path:
        return self.seeing() if claim.name == claims.SEEING else EMBEDDED

    def served(self) -> Server:
        """A server of ours. Raises OSError where it does not start."""
        if self._server is None:
            command = [sys.executable, "-m", "sglang.launch_server", "--port", "{port}",
                       "--dtype", "float32", "--log-level", "warning"]  # fmt: skip
            path = {"PYTHONPATH": str(ROOT / "python")}
            self._server = Server(command, self.logs / "server.log", path)
            self._server.ready(START_SECONDS)
        return self._server

    def plain(self) -> Side:
        """Plain client code on that server."""
        return Plain("plain client code", self.served().url, "default", ignore_eos=False)

    def _start(self, sides: list[Side]) -> None:
        sides += [ablations.opened(ablations.FULL, dtype="float32"), self.plain()]

    def end(self) -> None:
        """End the server too."""
        self.close()
        if self._server is not None:
            self._server.close()

    def finished(self) -> list[str]:
        """Make a page of the records, away from the real one, and return what was wrong."""
        docs = self.logs / "docs"
        docs.mkdir()
        shutil.copy(ROOT / "docs" / report.PAGE, docs)
        report.into(docs, self.log.records)
        return report.problems(self.log.records)


def answers(small: Small, claim: Claim, until: float) -> None:
    """Everything on, everything off, and plain client code, where it can ask for the same."""
    asked = claim.name != claims.SEEING and claim.name not in claims.PARALLEL
    others = [small.plain()] if asked else []
    for record in same_answers(small, claim, [ablations.ALL_OFF], others):
        small.tell(record)


def ablated(small: Small, claim: Claim, until: float) -> None:
    """Each ablation alone, a round of each in turns; no answer may differ."""
    of, full = claim.name == CONSTRAINED, ablations.FULL
    chosen = [a for a in ablations.ABLATIONS.values() if a.constrained == of and a is not full]
    before = len(small.log.records)
    compared(small, "ablation", claim, [full, *chosen], "throughput", time.monotonic())
    for run in small.log.records[before:]:
        count = run["items"]
        small.tell({"kind": "answers", "claim": claim.name, "side": run["side"], "items": count,
                    "equal": count - run["differ"], "right": None})  # fmt: skip


def curve(small: Small, claim: Claim, until: float) -> None:
    chosen = [ablations.partial(rate) for rate in (0.0, 0.5, 1.0)]
    compared(small, "curve", claim, chosen, "throughput", time.monotonic())


def api(small: Small, claim: Claim, until: float) -> None:
    """Both bills of the server that plain client code asks."""
    items = claim.items(Scale(small.answered), small.seed)
    small.tell({"kind": "api", "items": len(items), **both(items, small.served().url)})


def fsm(small: Small, until: float) -> None:
    parts.fsm(small, until, ["--num-requests", "2", "--rounds", "1", "--workloads", "city"])


WORKS: dict[str, Work] = {
    "answers": (claims.NAMES, 1, answers),
    "hits": (claims.NAMES, 1, parts.hits),
    "images": ((claims.SEEING,), 1, parts.images),
    "api": ((claims.PAID,), 1, api),
    "speed": (("few_shot",), 1, parts.speed),
    "ablations": ((FORKED, CONSTRAINED), 4, ablated),
    "curve": ((FORKED,), 2, curve),
    "fsm": ((), 4, fsm),
    "overhead": ((), 1, parts.overhead),
}
