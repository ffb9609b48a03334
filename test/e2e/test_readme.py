"""The README's program prints what the README says; those of docs/http.md run against a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.launched import Server, best_model

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


def test_the_program_prints_what_is_printed_below_it(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    program, shown = re.findall(r"```(?:python|text)\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "program.py"  # a file, as the user has: errors name its lines
    file.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, timeout=120, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers, usage = shown.split(" Usage")
    printed, counted = done.stdout.split(" Usage")
    assert printed == answers
    # Counts of tokens are the tokenizer's business; there must be the same ones, and some cached.
    assert re.sub(r"\d+", "0", counted) == re.sub(r"\d+", "0", usage)
    assert int(re.findall(r"cached_tokens=(\d+)", counted)[0]) > 0
    calls = r"calls=\d+"  # these are the language's
    assert re.findall(calls, counted) == re.findall(calls, usage)


def test_the_programs_of_the_http_page_run(tmp_path: Path) -> None:
    for client in ("openai", "anthropic"):
        pytest.importorskip(client)
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(programs) >= 6
    server = Server(["--log-level", "warning", *best_model(tmp_path)])
    try:
        server.wait_ready()
        port = server.url.rpartition(":")[2]
        file = tmp_path / "program.py"
        file.write_text("\n".join(programs).replace(":30000", f":{port}"), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, file], capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
    finally:
        server.process.terminate()
        assert server.wait_end() == 0
