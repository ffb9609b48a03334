"""The same sessions on a real engine, with host memory and without, parked and not."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmark.interception import real_engine
from benchmark.interception.real_engine import main


def test_all_arms_generate_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real_engine, "FASTER", 400)  # a session's calls take 0.1 s in place of 2
    main(["--model", "T", "--seconds", "1.5", "--clients", "4", "--rounds", "1", "--tokens", "600"])
    out = capsys.readouterr().out
    assert "the tokens of all arms are equal" in out
    assert out.count("sessions/s") == 4
