"""``sglang chat``, ``run`` and ``ps`` against one served model, as a person types them."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.launched import Server, best_model, launched
from helpers.paths import PYTHON

PROGRAM = """
import sglang as sgl

@sgl.function
def repeat(s, word: str):
    s += sgl.user(f"Repeat: {word}") + sgl.assistant(sgl.gen("answer", max_tokens=16))
"""
RUNTIME = ("torch", "numpy", "msgspec", "zmq", "tokenizers", "psutil", "starlette", "uvicorn",
           "huggingface_hub", "jinja2", "openai")  # fmt: skip
ALONE = f"import sys; sys.modules.update(dict.fromkeys({RUNTIME!r})); " \
        "from sglang.srt.cli import main; sys.exit(main(sys.argv[1:]))"  # fmt: skip
"""Runs the command without what the runtime needs: an import of it fails."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("torch")
    model = best_model(tmp_path_factory.mktemp("model"))
    words = model or ["sglang-tiny"]  # as in: sglang serve MODEL
    with launched([*words, "--log-level", "warning", "--max-total-tokens", "8192"]) as found:
        yield found


def command(*words: str, text: str = "", alone: bool = False) -> subprocess.CompletedProcess[str]:
    start = ["-c", ALONE] if alone else ["-m", "sglang.srt.cli"]
    return subprocess.run(
        [sys.executable, *start, *words], input=text, capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": str(PYTHON)},
    )  # fmt: skip


@pytest.mark.parametrize("alone", [False, True])
def test_chat_and_run_need_no_runtime(server: Server, tmp_path: Path, alone: bool) -> None:
    settings = ["--set", "temperature=0", "--set", "max_tokens=16"]
    done = command("chat", "--url", server.url, *settings, text="Repeat: lamp", alone=alone)
    assert done.returncode == 0, done.stderr
    answer = done.stdout.strip()
    assert answer
    file = tmp_path / "repeat.py"
    file.write_text(PROGRAM)
    words = [f"{file}:repeat", "word=lamp", "--param", "temperature=0", "--url", server.url]
    done = command("run", *words, "--json", alone=alone)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answer"].strip() == answer
    for more in (["--stream"], ["--on", "server"]):
        shown = command("run", *words, "--var", "answer", *more, alone=alone)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.strip() == answer


def test_ps_lists_the_server(server: Server) -> None:
    done = command("ps", "--json")
    assert done.returncode == 0, done.stderr
    (own,) = [one for one in json.loads(done.stdout) if one["pid"] == server.process.pid]
    assert own["address"] == server.url
    assert (own["state"], own["running"]) == ("serving", 0)
    assert 0 <= own["kv_used"] <= 1
    assert server.url in command("ps").stdout


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, home: Path, *words: str) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.environ.update(PYTHONPATH=str(PYTHON), TERM="dumb", XDG_STATE_HOME=str(home))
            os.execv(sys.executable, [sys.executable, "-m", "sglang.srt.cli", *words])
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def until(self, text: str, seconds: float = 50.0) -> str:
        """Read until ``text`` is shown; what was shown up to its end, which is taken away."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            ready, _, _ = select.select([self._file], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} is not in {self.shown!r}"
            try:
                self.shown += os.read(self._file, 1 << 16).decode(errors="replace")
            except OSError as error:  # the terminal is closed
                raise AssertionError(f"{text!r} is not in {self.shown!r}") from error
        found, _, self.shown = self.shown.partition(text)
        return found + text

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        os.close(self._file)


def test_chat_in_a_terminal(server: Server, tmp_path: Path) -> None:
    """Two turns, a command, an answer that Ctrl-C stops, and the end."""
    words = ["--url", server.url, "--set", "temperature=0", "--set", "max_tokens=12"]
    terminal = Terminal(tmp_path, "chat", *words)
    try:
        terminal.until("> ")
        terminal.type("Repeat: lamp\n")
        terminal.until("lamp")  # the echo of the line
        terminal.until("> ")
        terminal.type("/hstory\n")
        terminal.until("did you mean /history?")
        terminal.type("/history\n")
        terminal.until("user: Repeat: lamp")
        terminal.until("assistant: ")
        terminal.until("> ")
        terminal.type("/set max_tokens=4000\n")
        terminal.until("> ")
        terminal.type("/set ignore_eos=true\n")
        terminal.until("> ")
        terminal.type("Repeat: sea\n")
        terminal.until("sea")
        terminal.until("a", 30)  # some of the answer
        os.kill(terminal.pid, signal.SIGINT)
        terminal.until("(stopped)")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.wait() == 0
    finally:
        terminal.close()
    assert "Repeat: lamp" in (tmp_path / "sglang" / "chat_history").read_text()
