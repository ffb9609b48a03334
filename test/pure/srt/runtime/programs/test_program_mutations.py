"""Histories of programs can fail: each of these faults, put into the real code, is caught."""

from __future__ import annotations

import asyncio

import pytest
from helpers.mutation import Mutation, become, mutate
from helpers.program_histories import History
from sglang.srt.runtime.programs.program_run import ProgramRun, StreamRun
from sglang.srt.runtime.programs.program_sessions import ProgramSession, ProgramSessions
from sglang.srt.runtime.programs.promises import Promise
from sglang.srt.runtime.programs.run_events import RunEvents
from sglang.srt.runtime.programs.stream_text import StreamText

WITHIN = 240

MUTATIONS = {
    "a failure reaches no variable": [
        Mutation(ProgramRun, "_fail", "self.variables[X].fail(_)", become("None")),
    ],
    "a failure reaches no join": [
        Mutation(ProgramRun, "_fail", "self.ends[X].fail(_)", become("None")),
    ],
    "branches of a fork that failed are forgotten": [
        Mutation(ProgramRun, "_fail", "self._over(_, _)", become("None")),
    ],
    "a task is cancelled before it has begun": [
        Mutation(StreamRun, "stop", "_ is not None and self.begun and _", become("self.task")),
    ],
    "a settled promise wakes nothing": [
        Mutation(Promise, "_end", "self._settled.notify()", become("None")),
    ],
    "the slot of a program's request is kept": [
        Mutation(ProgramSession, "run_ended", "_.release()", become("None")),
    ],
    "a session that is closed leaves its runs": [
        Mutation(ProgramSessions, "close", "run.close(_)", become("None")),
    ],
    "a session that is closed leaves its timer": [
        Mutation(ProgramSessions, "close", "_.cancel()", become("None")),
    ],
    "a branch shares the text of its parent": [
        Mutation(StreamText, "copy", "list(self._pieces)", become("self._pieces")),
    ],
    "an event wakes no follower": [
        Mutation(RunEvents, "add", "self._changed.notify()", become("None")),
    ],
    "a text is appended in front": [
        Mutation(StreamText, "append", "self._pieces.append(X)",
                 become("self._pieces.insert(0, X)")),
    ],
}  # fmt: skip


def caught() -> bool:
    """Whether a history fails."""
    for seed in range(WITHIN):
        try:
            asyncio.run(asyncio.wait_for(History(seed).play(), 20))
        except (Exception, asyncio.CancelledError):
            return True
    return False


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_histories_catch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *MUTATIONS[name])
    assert caught(), f"{WITHIN} histories pass although {name}"
