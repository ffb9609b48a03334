"""Supervise: stages in processes of their own, each under a limit.

A CUDA error is sticky and a kernel may hang, so the parent process never touches the device. A
stage that dies or exceeds its limit is recorded, the next of its modes is tried while there is
time, and the next stage runs.

    exit status 0    good
                4    ended, and something it checked is wrong
                other, a signal, the limit    broken: the next mode is tried
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmark.gpu.records import Log
from benchmark.gpu.stages import Stage

# A stage learns of an earlier deadline than the one at which it is ended, so that it can stop by
# itself: this share of its time, at most so many seconds.
MARGIN_SHARE, MARGIN = 0.15, 10.0
# Least seconds in which another mode is worth a try.
RETRY = 20.0
GRACE = 4.0  # from SIGTERM to SIGKILL
WRONG = 4  # exit status; Python's own for errors is 1
Command = Callable[[Stage, str, float], Sequence[str]]  # stage, mode, seconds -> argv
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """Result of one attempt. ``status``: good, wrong, broken, killed (by a signal), over its limit
    or left out."""

    stage: str
    mode: str
    status: str
    seconds: float
    detail: str = ""

    @property
    def ended(self) -> bool:
        """Whether the stage ran to its end, whatever it found."""
        return self.status in ("good", "wrong")


@dataclass
class Supervisor:
    """Runs stages one after the other, their output to ``folder``/logs and, by ``say``, to the
    terminal."""

    folder: Path
    command: Command
    total: float
    say: Say = print
    retry: float = RETRY
    began: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self, stages: Sequence[Stage], reserve: float = 0.0) -> list[Outcome]:
        """All stages within ``total`` seconds less ``reserve``, each with its share of them."""
        weight = sum(stage.seconds for stage in stages) or 1.0
        share = 0.0
        for number, stage in enumerate(stages, 1):
            share += stage.seconds / weight
            deadline = self.began + max(0.0, self.total - reserve) * share
            self.say(f"{self._clock()} {number}/{len(stages)} {stage.name}: {stage.title}")
            self._stage(stage, deadline)
        return self.outcomes

    def _stage(self, stage: Stage, deadline: float) -> None:
        for mode in stage.modes:
            left = deadline - time.monotonic()
            if mode != stage.modes[0] and left < self.retry:
                self._note(Outcome(stage.name, mode, "left out", 0.0, "no time was left"))
                return
            outcome = self._attempt(stage, mode, max(left, 1.0))
            self._note(outcome)
            if outcome.ended:
                return

    def _attempt(self, stage: Stage, mode: str, limit: float) -> Outcome:
        """One process under ``limit`` seconds, in a session of its own."""
        Log(self.folder, stage.name).add("started", mode=mode)
        soft = limit - min(MARGIN, MARGIN_SHARE * limit)
        name = f"{stage.name}-{mode}".strip("-").replace(" ", "-")
        path = self.folder / "logs" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with subprocess.Popen(
            list(self.command(stage, mode, soft)), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        ) as child:  # fmt: skip
            reader = threading.Thread(target=self._follow, args=(child, path, stage.name))
            try:
                reader.start()
                status, detail = _wait(child, limit)
            finally:
                end_session(child.pid)  # also what the stage left behind
                if reader.is_alive():
                    reader.join(GRACE)
        return Outcome(stage.name, mode, status, time.monotonic() - began, detail)

    def _follow(self, child: subprocess.Popen[str], path: Path, name: str) -> None:
        assert child.stdout is not None
        with path.open("a", encoding="utf-8") as file:
            for line in child.stdout:
                file.write(line)
                file.flush()
                self.say(f"{self._clock()} {name} | {line.rstrip()}")

    def _note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        Log(self.folder, outcome.stage).add(
            "ended", mode=outcome.mode, status=outcome.status,
            seconds=round(outcome.seconds, 1), detail=outcome.detail,
        )  # fmt: skip
        mode = f" ({outcome.mode})" if outcome.mode else ""
        detail = f": {outcome.detail}" if outcome.detail else ""
        self.say(f"{self._clock()} {outcome.stage}{mode} {outcome.status}{detail}")

    def _clock(self) -> str:
        """Time passed of all, and a bar of it."""
        passed = time.monotonic() - self.began
        filled = min(10, int(10 * passed / max(self.total, 1e-9)))
        bar = "#" * filled + "-" * (10 - filled)
        return f"[{_minutes(passed)} of {_minutes(self.total)} {bar}]"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60:2d}:{int(seconds) % 60:02d}"


def _wait(child: subprocess.Popen[str], limit: float) -> tuple[str, str]:
    """Status and detail of a child that has ended or was ended."""
    try:
        code = child.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGTERM)  # the stage writes its stacks to the log
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return "over its limit", f"{limit:.0f} s"
    if code < 0:
        return "killed", signal.Signals(-code).name
    return {0: ("good", ""), WRONG: ("wrong", "")}.get(code, ("broken", f"exit status {code}"))


def end_session(session: int) -> None:
    """Kill what is left of a session, its other process groups included."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(path.name)) == session:
                os.kill(int(path.name), signal.SIGKILL)
