"""Bytes of the answers that are kept to rebuild a run."""

from __future__ import annotations

import pytest
from sglang.srt.inferlet.host.run_log import TURN, RunLog


@pytest.mark.parametrize(("answers", "size"), [("", 0), ("[]", 2), ("ü", 2), ("\U0001f600", 4)])
def test_a_log_counts_bytes_and_turns(answers: str, size: int) -> None:
    log = RunLog(3 * (TURN + size))
    for _ in range(3):
        log.add(answers, "[]")
    assert log.complete
    assert len(log.turns) == 3
    log.add("", "[]")
    assert not log.complete
    assert log.turns == ()
