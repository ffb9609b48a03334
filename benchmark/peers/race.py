"""Race: contenders of one size take turns at every work, and their texts are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from sglang.srt.commands.bench.stats import Spread

from benchmark.harness.rounds import rotated
from benchmark.models import Shape
from benchmark.peers import roofline, work
from benchmark.peers.check import equal_share, sample, wrong_lengths
from benchmark.peers.child import Child, Failed
from benchmark.peers.contenders import Contender
from benchmark.peers.sides.wire import Request

LOAD_SECONDS = 900.0
RUN_SECONDS = 900.0
WARM_SCALE = 4
Record = dict[str, Any]


@dataclass(frozen=True)
class Rules:
    """Rules of a race.

    Attributes:
        works: which, in order.
        rounds: runs of each contender.
        patience: one that takes longer than this many times the first contender's runs twice only.
        checked: texts a work and contender that float32 reads again.
        scale: divides the work, for tests.
    """

    works: Sequence[str]
    rounds: int = 5
    patience: float = 4.0
    checked: int = 2
    scale: int = 1


@dataclass
class Race:
    """One size. ``tell`` takes every record as it comes; ``say`` a line for the waiting user."""

    size: str
    shape: Shape
    rules: Rules
    logs: Path
    tell: Callable[[Record], None]
    say: Callable[[str], None]
    limits: roofline.Limits | None = None
    # Texts of the first round, by work and contender, to compare with the first contender's.
    _texts: dict[tuple[str, str], list[list[int]]] = field(default_factory=dict)
    _running: dict[Contender, Child] = field(default_factory=dict)

    def run(self, contenders: Sequence[Contender]) -> None:
        """Start them, race, end them. One that fails is reported and left out from there on."""
        try:
            for contender in contenders:
                self._start(contender)
            for name in self.rules.works:
                if any(name in contender.works for contender in self._running):
                    self._race(name)
        finally:
            for child in self._running.values():
                child.close()
            self._running = {}

    def _start(self, contender: Contender) -> None:
        if contender.missing:
            self._out(contender, contender.missing)
            return
        log = self.logs / f"{self.size} {contender.name}.log".replace(" ", "-")
        child = Child(contender.python, contender.module, log, contender.environment)
        self._running[contender] = child
        self.say(f"{self.size}: {contender.name} loads")
        try:
            about = child.ask({"do": "load", "spec": dict(contender.spec)}, LOAD_SECONDS)
        except Failed as error:
            self._drop(contender, str(error))
        else:
            self.tell({"kind": "loaded", "size": self.size, "contender": contender.name, **about})

    def _race(self, name: str) -> None:
        rules = self.rules
        runs: dict[Contender, list[float]] = {c: [] for c in self._running if name in c.works}
        small = work.make(name, -1, self.shape.vocab, rules.scale * WARM_SCALE)
        for contender in runs:
            self._ask(contender, small)
        for round in range(rules.rounds):
            requests = work.make(name, round, self.shape.vocab, rules.scale)
            limit = self._limit(requests)
            for contender in rotated(list(runs), round):
                if round >= 2 and self._too_slow(contender, runs):
                    continue
                answer = self._ask(contender, requests)
                if answer is not None:
                    runs[contender].append(answer["seconds"])
                    self.tell(self._record(name, round, contender, requests, answer, limit))
                    if round == 0:
                        self._texts[name, contender.name] = answer["ids"]
            times = [f"{c.name} {median(r):.3f} s" for c, r in runs.items() if r]
            self.say(f"{self.size} {name}, round {round + 1}: " + ", ".join(times))

    def _too_slow(self, contender: Contender, runs: dict[Contender, list[float]]) -> bool:
        first = next(iter(runs.values()))
        mine = runs[contender]
        return bool(first and mine) and median(mine) > self.rules.patience * median(first)

    def _limit(self, requests: Sequence[Request]) -> dict[str, float]:
        if self.limits is None:
            return {}
        kinds = ("bfloat16", "int8")
        return {kind: roofline.seconds(self.shape, requests, self.limits, kind) for kind in kinds}

    def _ask(self, contender: Contender, requests: list[Request]) -> Any:
        """The answer, or None from one that failed, now or before."""
        if contender not in self._running:
            return None
        try:
            question = {"do": "run", "requests": requests}
            answer = self._running[contender].ask(question, RUN_SECONDS)
        except Failed as error:
            self._drop(contender, str(error))
            return None
        # Over HTTP some tell only text; the number of their tokens was checked on their side.
        if any(answer["ids"]) and (wrong := wrong_lengths(requests, answer["ids"])):
            self._drop(contender, wrong[0])
            return None
        return answer

    def _record(
        self, name: str, round: int, contender: Contender, requests: Sequence[Request],
        answer: Record, limit: dict[str, float],
    ) -> Record:  # fmt: skip
        ttft = Spread.of(answer.get("ttft") or [])
        return {
            "kind": "run", "size": self.size, "work": name, "contender": contender.name,
            "round": round, "seconds": answer["seconds"],
            "tokens_in": sum(len(ids) for ids, _ in requests),
            "tokens_out": sum(count for _, count in requests),
            "roofline": limit.get(contender.kind),
            "ttft_p50": ttft and ttft.p50, "ttft_p99": ttft and ttft.p99,
        }  # fmt: skip

    def check(self, contenders: Sequence[Contender], model: Path, python: str) -> None:
        """Compare the texts of the first round with the first contender's, and a sample of them
        with float32, which ``python`` computes with transformers."""
        log = self.logs / f"{self.size}-reference.log"
        reference = Child(python, "benchmark.peers.sides.reference", log)
        try:
            reference.ask({"do": "load", "spec": {"model_path": str(model)}}, LOAD_SECONDS)
            for (name, who), texts in self._texts.items():
                kind = next(c.kind for c in contenders if c.name == who)
                self._check(reference, name, who, kind, texts)
        finally:
            reference.close()

    def _check(
        self, reference: Child, name: str, who: str, kind: str, texts: list[list[int]]
    ) -> None:
        if not any(texts):
            return
        requests = work.make(name, 0, self.shape.vocab, self.rules.scale)
        chosen = sample(requests, self.rules.checked)
        pairs = [(requests[i][0], texts[i]) for i in chosen]
        found = reference.ask({"do": "run", "requests": pairs}, RUN_SECONDS)
        first = next(told for (work_, _), told in self._texts.items() if work_ == name)
        self.tell({
            "kind": "check", "size": self.size, "work": name, "contender": who, "weights": kind,
            "equal": equal_share(first, texts), "regret": max(found["regrets"]),
        })  # fmt: skip

    def _drop(self, contender: Contender, why: str) -> None:
        self._running.pop(contender).close()
        self._out(contender, why)

    def _out(self, contender: Contender, why: str) -> None:
        self.say(f"{self.size}: without {contender.name}: {why}")
        about = {"size": self.size, "contender": contender.name, "why": why}
        self.tell({"kind": "left out", **about, "failed": not contender.missing})
