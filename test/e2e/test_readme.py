"""The README's program prints what the README says; those of docs/http.md run against a server."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.launched import best_model, launched
from helpers.paths import ROOT

pytest.importorskip("torch")


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
    calls = r"calls=\d+"  # counts of the language, not of the server
    assert re.findall(calls, counted) == re.findall(calls, usage)


def curls(page: str) -> Iterator[str]:
    """The curl commands of a page, each to its last quotation mark, but for those of console
    blocks: test_page_examples runs them."""
    lines = iter(re.sub(r"(?ms)^```console$.*?^```$", "", page).splitlines())
    for line in lines:
        if (command := line.strip().removeprefix("$ ")).startswith("curl "):
            while command.endswith("\\") or command.count("'") % 2:
                command = command.removesuffix("\\") + "\n" + next(lines)
            yield command


def test_the_curl_lines_of_all_pages_are_answered(tmp_path: Path) -> None:
    """A body with "..." or with an adapter of the reader's is checked for its form alone."""
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    commands = [c for page in pages for c in curls(page.read_text(encoding="utf-8"))]
    assert len(commands) >= 7
    asked = 0
    with launched(["--log-level", "warning", *best_model(tmp_path)]) as server:
        session = httpx.post(f"{server.url}/open_session", timeout=60).text
        for line in commands:
            line = line.replace("'$S'", session)
            command = shlex.split(line.replace("localhost:30000", server.url))
            body = command[command.index("-d") + 1]
            assert command[command.index("-H") + 1] == "Content-Type: application/json", line
            if "..." in body or "lora_path" in body:
                continue
            command.append("--fail-with-body")
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, (line, done.stdout)
            assert json.loads(done.stdout)
            asked += 1
    assert asked >= 4


def test_the_programs_of_the_http_page_print_what_it_shows(tmp_path: Path) -> None:
    for client in ("openai", "anthropic"):
        pytest.importorskip(client)
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", page, re.DOTALL)
    assert len(found) >= 6
    with launched(["--log-level", "warning", *best_model(tmp_path)]) as server:
        port = server.url.rpartition(":")[2]
        file = tmp_path / "program.py"
        programs = "\n".join(program for program, _ in found)
        file.write_text(programs.replace(":30000", f":{port}"), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, file], capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == "".join(shown for _, shown in found).split()
