"""The soak (``make soak``), for as long as the suite has time: one engine is killed, one account
is made in the middle, and a SIGTERM ends it."""

from __future__ import annotations

import pytest
from soak.__main__ import main


def test_a_short_soak(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--minutes", "0.15", "--seed", "1", "--workers", "12", "--quiet", "5", "--kill", "4"]
    status = main(asked)
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "engine killed" in shown
    assert "ok: every request had one end" in shown
