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


SOURCES = {"a.c": "C", "a.rs": "Rust", "a.ts": "AssemblyScript", "a.wat": "WAT"}


@pytest.mark.parametrize("name", SOURCES)
def test_source_is_to_be_built_first(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for action in (["put", name], ["run", name]):
        assert main(["inferlet", *action]) == 1
        told = f"{name} is source in {SOURCES[name]}; build it: sglang inferlet build {name}"
        error = capsys.readouterr().err
        assert told in error
        assert ("compiled to .js first, by tsc" in error) == (name == "a.ts")


@pytest.mark.parametrize(
    ("name", "tool", "how"),
    [
        ("a.c", "clang", "pip install ziglang"),
        ("a.rs", "rustc", "libstd-rust-dev-wasm32"),
        ("a.ts", "asc, the compiler of AssemblyScript,", "npm install -g assemblyscript"),
    ],
)
def test_a_missing_compiler_is_named(
    name: str, tool: str, how: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["inferlet", "build", str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert f"{tool} is not installed; get it by: " in error
    assert how in error


def tool(folder: Path, name: str, script: str) -> None:
    """A compiler that answers by a script of the shell, whose last line makes the file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


RUSTC = """case "$*" in
*target-libdir*) echo {root}/wasm ;;
*sysroot*) echo {root} ;;
*--version*) echo rustc 1.63.0 ;;
*) while [ "$1" != -o ]; do shift; done; echo "$PWD" >"$2" ;;
esac"""


def test_what_rust_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool(tmp_path, "rustc", RUSTC.format(root=tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    source = tmp_path / "a.rs"

    def told() -> str:
        assert main(["inferlet", "build", str(source)]) == 1
        return capsys.readouterr().err

    assert "rustc 1.63.0 has no library of the target wasm32-unknown-unknown" in (error := told())
    assert "rustup target add wasm32-unknown-unknown" in error
    (tmp_path / "wasm").mkdir()
    (tmp_path / "wasm" / "libstd-1.rlib").touch()
    assert "wasm-ld, the linker of WebAssembly, is not installed" in told()
    tool(tmp_path, "wasm-ld-14", "")
    assert main(["inferlet", "build", str(source)]) == 0
    assert (tmp_path / "a.wasm").read_text().strip() == str(tmp_path)


def test_the_compiler_beside_a_file_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool(tmp_path, "node_modules/.bin/asc", 'echo "$1: no good" >&2; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path / 'none'}:/bin:/usr/bin")
    monkeypatch.setattr("shutil.which", lambda name: None)
    (tmp_path / "inner").mkdir()
    assert main(["inferlet", "build", str(tmp_path / "inner" / "a.ts")]) == 1
    assert "asc has failed:\na.ts: no good" in capsys.readouterr().err


def test_javascript_runs_on_a_server_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inferlet", "run", "a.js"]) == 1
    assert "a.js is JavaScript, which runs in a server's sandbox alone" in capsys.readouterr().err
