"""Program view: graphs of running programs with states, labels and groups, for the live page."""

from __future__ import annotations

from typing import Any

from sglang.srt.programs.objectives import CallLabel
from sglang.srt.runtime.programs.application import PLAIN, Application
from sglang.srt.runtime.programs.program_run import ProgramRun
from sglang.srt.runtime.programs.program_sessions import ProgramSessions

MOST_PROGRAMS = 16  # the latest running programs
MOST_CALLS = 64  # calls of one program


def running_programs(sessions: ProgramSessions) -> tuple[list[dict[str, Any]], int]:
    """Return views of the running programs, the latest first, and how many more there are."""
    runs = [run for s in sessions.all() for run in s.runs.values() if not run.over]
    shown = [program_view(run) for run in runs[: -MOST_PROGRAMS - 1 : -1]]
    return shown, len(runs) - len(shown)


def program_view(run: ProgramRun) -> dict[str, Any]:
    """Return the view of one program. Each call comes after the calls whose values it reads."""
    assert isinstance(run.application, Application)
    labels = run.application.labels()
    calls = list(run.graph.reads)
    shown = calls[:MOST_CALLS]
    return {
        "id": run.id,
        "name": run.program.name,
        "application": run.application.name,
        "calls": [_call(run, call, labels.get((run.id, call), PLAIN)) for call in shown],
        "more": max(len(calls) - MOST_CALLS, 0),
    }


def _call(run: ProgramRun, call: int, label: CallLabel) -> dict[str, Any]:
    step = run.program.steps[call]
    return {
        "step": call,
        "op": step.op,
        "name": next(iter(step.made()), ""),
        "at": f"{step.at[0]}:{step.at[1]}" if step.at else "",
        "state": run.states.get(call, "waiting"),
        "reads": sorted(run.graph.before(call)),
        "criteria": label.criteria.word,
        "stage": label.stage,
        "group": label.group,
        "critical": label.critical,
    }
