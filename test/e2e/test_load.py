"""A thousand clients at once: no error, no lost stream, bounded memory, the engine's own texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.serving.__main__ import main

CLIENTS, TOKENS = 1000, 4
MIB = 2**20


def test_a_thousand_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs.jsonl"
    asked = ["--http-overhead", "--clients", str(CLIENTS), "--output-len", str(TOKENS)]
    status = main([*asked, "--output-file", str(out)])
    shown = capsys.readouterr()
    assert status == 0, shown
    engine, server = (json.loads(line) for line in out.read_text().splitlines())
    for run in (engine, server):
        assert (run["completed"], run["failed"], run["problems"]) == (CLIENTS, 0, [])
        assert run["output_tokens"] == CLIENTS * TOKENS
    assert f"{CLIENTS} of {CLIENTS} answers equal" in shown.out
    counted = server["counted"]
    assert counted["finished"] == CLIENTS
    assert counted["failed"] == counted["rejected"] == counted["aborted"] == 0
    assert counted["server_grown_bytes"] < 256 * MIB
    assert "us a token" in shown.out
