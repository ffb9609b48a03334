"""``sglang inferlet launch``: which words are the command's, and which the program's. ``runner``:
what is built, and what is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from sglang.backend.engine import sandbox_command
from sglang.srt.cli import main
from sglang.srt.inferlet.host import runner_build
from sglang.srt.inferlet.host.runner_build import PYTHON, Recipe, ToolchainMissing

LIMIT, KEY = ["--limit", "turn_cpu=0.5"], ["--api-key", "secret", "--url", "http://there"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The key and the body of each run that is started; a run has no events."""
    found: list[tuple[str, Any]] = []

    class Client:
        def __init__(self, url: str, key: str, *, verify: bool) -> None:
            assert (url, verify) == ("http://there", True)
            self._key = key

        def launch(self, program: str, *arguments: str, **fields: Any) -> str:
            assert program == "ID"
            found.append((self._key, {"arguments": list(arguments), **fields}))
            return "run"

        def events(self, run: str, after: int = -1) -> list[Any]:
            return []

    monkeypatch.setattr(sandbox_command, "InferletClient", Client)
    return found


@pytest.mark.parametrize(
    "words", [[*LIMIT, *KEY, "ID"], ["ID", *LIMIT, *KEY], [*LIMIT, "ID", *KEY]]
)
@pytest.mark.parametrize("program", [[], ["a", "--limit", "x=1", "--", "-b"]])
def test_options_are_read_up_to_the_dashes(
    sent: list[tuple[str, Any]], words: list[str], program: list[str]
) -> None:
    assert main(["inferlet", "launch", *words, "--", *program]) == 0
    assert main(["inferlet", "launch", *words]) == 0
    assert sent == [
        ("secret", {"arguments": program, "turn_cpu": 0.5}),
        ("secret", {"arguments": [], "turn_cpu": 0.5}),
    ]


def test_words_of_the_program_need_the_dashes(
    sent: list[tuple[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["inferlet", "launch", "ID", *KEY, "lamps"])
    assert "lamps: flags of the program come after --" in capsys.readouterr().err
    assert sent == []


@pytest.mark.parametrize("missing", ["JavaScript", "Python"])
def test_a_runner_that_cannot_be_built_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def runner(directory: Path | None = None, recipe: Recipe | None = None) -> Path:
        language = "Python" if recipe is PYTHON else "JavaScript"
        if language == missing:
            raise ToolchainMissing("a tool is not installed")
        return Path(language)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(runner_build, "runner", runner)
    assert main(["inferlet", "runner"]) == (1 if missing == "Python" else 0)
    out, err = capsys.readouterr()
    assert out.split() == ["Python" if missing == "JavaScript" else "JavaScript"]
    assert err == f"no runner of {missing}: a tool is not installed\n"


def test_javascript_runs_on_a_server_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inferlet", "run", "a.js"]) == 1
    assert "a.js is JavaScript, which runs in a server's sandbox alone" in capsys.readouterr().err
