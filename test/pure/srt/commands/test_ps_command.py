"""sglang ps: which processes are servers, and what is shown of each."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.srt.commands.ps_command import RunningServer, described, duration, is_server, table

STATS = {"running": 2.0, "waiting": 1.0, "compiling": 1.0, "total_tokens": 100.0,
         "free_tokens": 60.0, "evictable_tokens": 15.0}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("python -m sglang.launch_server --port 0", True),
        ("/usr/bin/python3 -X dev -m sglang.launch_server", True),
        ("python -m sglang.srt.cli serve model", True),
        ("python -m sglang.srt.cli ps", False),
        ("/venv/bin/python /venv/bin/sglang serve", True),
        ("/venv/bin/sglang serve", True),
        ("/venv/bin/sglang", False),
        ("/venv/bin/python /venv/bin/sglang chat", False),
        ("python serve.py -m sglang.launch_server", True),
        ("vim sglang serve", True),
        ("less serve", False),
        ("python -m", False),
        ("", False),
    ],
)
def test_is_server_by_its_command_line(words: str, found: bool) -> None:
    assert is_server(words.split()) is found


def test_described_by_the_server_itself() -> None:
    told = {"served_model_name": "m", "stats": STATS}
    assert described(7, "http://h:1", told, 9.0) == RunningServer(
        7, "http://h:1", "m", "serving", 2, 2, 0.25, 9.0
    )
    assert described(7, "http://h:1", {}, 9.0).kv_used is None


@pytest.mark.parametrize(
    ("told", "state"), [("the API key is missing", "needs a key"), ("500 oh", "refuses")]
)
def test_described_where_it_refuses(told: Any, state: str) -> None:
    assert described(7, "http://h:1", told, 9.0).state == state


def test_table_has_a_line_for_each() -> None:
    one = described(7, "http://h:1", {"served_model_name": "m", "stats": STATS}, 4000.0)
    head, line, other = table([one, RunningServer(8, "", "", "starting", None, None, None, 3.0)])
    assert head.split() == ["PID", "ADDRESS", "MODEL", "STATE", "RUNNING", "WAITING", "KV", "UP"]
    assert line.split() == ["7", "http://h:1", "m", "serving", "2", "2", "25%", "1h"]
    assert other.split() == ["8", "-", "-", "starting", "-", "-", "-", "3s"]


def test_duration_in_one_unit() -> None:
    assert [duration(s) for s in (0, 59, 60, 7200, 200000)] == ["0s", "59s", "1m", "2h", "2d"]
