"""Marks of lanes: which run each of them works on, by which a host's death is blamed."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")

from sglang.srt.inferlet.host.guest_lane import GuestLane


def test_a_lane_that_was_stopped_marks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    marks, begun, goes_on = list[int](), threading.Event(), threading.Event()
    lane = GuestLane(lambda report: None, marks.append, alone=True)

    def start(resident: Any) -> None:
        begun.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(lane, "_start", start)
    resident: Any = SimpleNamespace(run=7, ended=False, launch=SimpleNamespace(tenant="t"))
    lane.put(resident)
    assert begun.wait(60)
    assert marks == [7]
    lane.stop()  # another lane may have the mark from now on
    assert marks == [7, 0]
    goes_on.set()
    lane._thread.join(60)
    assert not lane._thread.is_alive()
    assert marks == [7, 0]
