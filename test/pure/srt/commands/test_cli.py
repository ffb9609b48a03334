"""sglang: every command has its page of help, and an unknown one is answered with a known one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from helpers.paths import PYTHON, ROOT
from sglang.srt import cli
from sglang.srt.cli import COMMANDS, MEANT, main
from sglang.srt.config.command_line import Parser


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("launch", "did you mean serve?"),
        ("benhc", "did you mean bench?"),
        ("download", "did you mean pull?"),
        ("xyzzy", "choose from"),
    ],
)
def test_a_wrong_command_is_told_the_right_one(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([word])
    assert end.value.code == 2
    assert hint in capsys.readouterr().err


def test_the_page_has_every_command() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`sglang {name}" not in page] == []


def test_other_names_stand_for_commands() -> None:
    assert set(MEANT.values()) <= {*COMMANDS, "--version", "--help"}
    assert not MEANT.keys() & COMMANDS.keys()


def test_every_command_has_a_module_and_a_sentence() -> None:
    for module, help, more in COMMANDS.values():
        assert importlib.util.find_spec(module) is not None
        assert help[0].islower()
        assert more.endswith(".")


@pytest.mark.parametrize("command", ["chat", "run", "ps", "pull", "bench", "chaos", "replay"])
def test_help_of_a_command_keeps_its_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: sglang {command}")
    if command not in ("ps", "pull"):
        assert f"\n  sglang {command} " in shown


def test_paragraphs_of_examples_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="x", description="a " * 90, epilog="one\ntwo\n\n  x --a   1\n  x --b\n")
    text = parser.format_help()
    assert "\n  x --a   1\n  x --b\n" in text
    assert "one two" in text


def test_bench_hands_its_flags_on(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("serving", "serve"):
        with pytest.raises(SystemExit) as end:
            main(["bench", name, "--help"])
        assert end.value.code == 0
        assert capsys.readouterr().out.startswith("usage: sglang bench serving")
    with pytest.raises(SystemExit):
        main(["bench", "serving", "--request-rte", "3"])
    assert "did you mean --request-rate?" in capsys.readouterr().err


def test_no_command_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n    {name}" not in shown] == []


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["lanch"], "usage: sglang [--help] [flags] COMMAND\n"),
        (["run"], "usage: sglang run [--help] [flags] FILE.py:NAME [NAME=VALUE ...]\n"),
        (["ps", "x"], "usage: sglang ps [--help] [flags]\n"),
        (["chat", "a", "b"], "usage: sglang chat [--help] [flags] [MODEL]\n"),
    ],
)
def test_a_wrong_line_is_answered_with_its_arguments(
    words: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert capsys.readouterr().err.startswith(usage)


def sglang(*words: str, to: IO[bytes] | int) -> tuple[int, str]:
    """The exit code and the messages of a command whose output goes to a file."""
    done = subprocess.run(
        [sys.executable, "-m", "sglang.srt.cli", *words], stdout=to, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(PYTHON)}, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(("words", "code"), [(["models"], 141), (["ps", "--help"], 0), ([], 2)])
def test_a_closed_pipe_ends_a_command_quietly(words: list[str], code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert sglang(*words, to=writer) == (code, "")
    finally:
        os.close(writer)


def test_a_full_disk_is_named() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "wb") as full:
        code, said = sglang("models", to=full)
    assert code == 1
    assert said == "sglang: the output cannot be written: No space left on device\n"


def test_an_error_of_a_command_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(argv: list[str]) -> int:
        raise ConnectionResetError("not of the output")

    monkeypatch.setattr(cli, "_main", failing)
    with pytest.raises(ConnectionResetError, match="not of the output"):
        main(["ps"])


def test_python_m_sglang_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sglang", "serv"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "sglang: error" in done.stderr
    assert "serve" in done.stderr
