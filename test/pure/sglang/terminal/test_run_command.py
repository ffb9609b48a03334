"""sglang run: a program from its file, its arguments, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sglang.backend.mock import Mock
from sglang.backend.record.call_recorder import Replay
from sglang.errors import BackendError
from sglang.srt.cli import main
from sglang.terminal import program_file, run_command
from sglang.terminal.program_file import ProgramFileError, fitting, load_program

SOURCE = '''
from __future__ import annotations
import sglang as sgl

other = 3

@sgl.function
def answer(s, question: str, count: int = 1, tags=()):
    """Answers."""
    s += question + ": " + sgl.gen("text")
    s["count"] = count
    return {"tags": tags}

@sgl.function
async def later(s, question):
    s += question + sgl.gen("text")

@sgl.function
def failing(s, kind):
    s += "x"
    if kind == "key":
        return {}["missing"]
    raise OSError("boom")

@sgl.function
def anything(s, **more):
    s += str(sorted(more)) + sgl.gen("text")
'''


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "programs_of_test.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def mock(monkeypatch: pytest.MonkeyPatch) -> Mock:
    backend = Mock(lambda prompt, params: "Rome")
    monkeypatch.setattr(run_command, "open_backend", lambda arguments: backend)
    return backend


def test_run_prints_the_text(file: str, mock: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{file}:answer", "question=2024", "--param", "temperature=0"]) == 0
    assert capsys.readouterr().out == "2024: Rome\n"  # as it was written: annotated str
    (call,) = mock.calls
    assert call.params is not None
    assert call.params.temperature == 0


@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        (["--stream"], "x: Rome\n"),
        (["--stream", "--var", "text"], "Rome\n"),
        (["--var", "text"], "Rome\n"),
        (["--var", "count"], "7\n"),
    ],
)
def test_run_prints_what_flags_choose(
    flags: list[str], printed: str, file: str, mock: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"{file}:answer", "question=x", "count=7", *flags]) == 0
    assert capsys.readouterr().out == printed


def test_run_json_has_variables_and_result(
    file: str, mock: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"{file}:answer", "question=x", 'tags=["a"]', "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "text": "Rome", "count": 1, "return": {"tags": ["a"]},
    }  # fmt: skip


def test_run_async_program(file: str, mock: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{file}:later", "question=x "]) == 0
    assert capsys.readouterr().out == "x Rome\n"
    assert main(["run", f"{file}:later", "question=x", "--stream"]) == 1
    assert "async def" in capsys.readouterr().err


def test_run_records_and_traces(file: str, mock: Mock, tmp_path: Path) -> None:
    calls, trace = tmp_path / "calls.jsonl", tmp_path / "trace.json"
    words = ["run", f"{file}:answer", "question=x", "--record", str(calls), "--trace", str(trace)]
    assert main(words) == 0
    assert trace.stat().st_size > 100
    assert load_program(f"{file}:answer").run("x", backend=Replay(calls))["text"] == "Rome"


def test_run_reads_an_argument_from_a_file(
    file: str, mock: Mock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.txt").write_text("Where?")
    assert main(["run", f"{file}:answer", f"question=@{tmp_path}/q.txt"]) == 0
    assert main(["run", f"{file}:answer", "question=@@me"]) == 0
    assert capsys.readouterr().out == "Where?: Rome\n@me: Rome\n"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{file}:anser", "did you mean answer?"),
        ("{file}:xyzzy", "it has answer, later, failing, anything"),
        ("{file}:other", "is 3, no program: put @sglang.function before it"),
        ("{file}", "has 4 programs: write"),
        ("nothing.py:f", "there is no file 'nothing.py'"),
        ("no_such_module_here:f", "no module 'no_such_module_here'"),
        (":f", "write FILE.py:NAME"),
    ],
)
def test_load_program_names_the_fault(target: str, message: str, file: str) -> None:
    with pytest.raises(ProgramFileError, match=message.replace("(", r"\(").replace("?", r"\?")):
        load_program(target.format(file=file))


def test_load_program_shows_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "broken_of_test.py"
    path.write_text("import sglang\n1 / 0\n")
    with pytest.raises(ProgramFileError, match=r"(?s)cannot be imported.*line 2.*ZeroDivision"):
        load_program(str(path))
    path.write_text("import no_such_package_here\n")
    with pytest.raises(ProgramFileError, match="needs a package that is missing"):
        load_program(str(path))


def test_one_program_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "single_of_test.py"
    path.write_text("import sglang as sgl\n@sgl.function\ndef f(s):\n    s += 'x'\n")
    assert load_program(str(path)).func.__name__ == "f"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"qestion": "x"}, "did you mean question"),
        ({"zzz": "x"}, "it is answer.question: .*str.*, count: .*int.* = 1"),
        ({}, "needs question; add question=VALUE"),
        ({"question": "@/nowhere/at.all"}, "cannot be read"),
    ],
)
def test_arguments_that_do_not_fit_are_named(values: Any, message: str, file: str) -> None:
    with pytest.raises(ProgramFileError, match=message):
        fitting(load_program(f"{file}:answer"), values, values)


def test_any_name_fits_a_program_that_takes_any(file: str) -> None:
    assert fitting(load_program(f"{file}:anything"), {"a": 1}, {"a": "1"}) == {"a": 1}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--json", "--stream"], "leave out --stream"),
        (["--on", "server", "--backend", "openai", "--model", "m"], "--on server needs a runtime"),
        (["--on", "server", "--record", "f"], "--on server makes none"),
        (["--backend", "server"], "add --url"),
        (["--backend", "engine", "--url", "http://h"], "leave one of them out"),
        (["--backend", "anthropic"], "add --model NAME"),
        (["--backend", "openai"], "add --model NAME"),
        (["--url", "http://h", "--setting", "a=1"], "the backend is server"),
        (["--param", "question=1"], "give it without --param"),
        (["--param", "temperature"], "write temperature=VALUE"),
        (["--param", "temprature=0"], "no parameter of gen; did you mean temperature?"),
        (["--param", "zz=1"], "--param zz is no parameter of gen; such as temperature"),
        (["--param", "top_p=1", "--param", "top_p=0.5"], "--param top_p is given twice"),
        (["question=y"], "argument question is given twice; give it once"),
    ],
)
def test_flags_that_exclude_each_other(
    flags: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if "--param" in flags or "question=y" in flags:
        monkeypatch.setattr(run_command, "open_backend", lambda arguments: Mock())
    assert main(["run", f"{file}:answer", "question=x", *flags]) == 1
    assert message in capsys.readouterr().err


def test_a_failed_program_is_an_exit_code(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(arguments: Any) -> Mock:
        return Mock([BackendError("no luck")])

    monkeypatch.setattr(run_command, "open_backend", failing)
    for flags in ([], ["--stream"], ["--json"]):
        assert main(["run", f"{file}:answer", "question=x", *flags]) == 1
        assert "no luck" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "said"), [("key", "KeyError: 'missing'"), ("os", "OSError: boom")]
)
@pytest.mark.parametrize("flags", [[], ["--stream"]])
def test_an_exception_of_the_program_has_its_line(
    kind: str, said: str, flags: list[str], file: str, mock: Mock, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    bundle = tmp_path / "bundle.json"
    words = ["run", f"{file}:failing", f"kind={kind}", "--bundle", str(bundle), *flags]
    assert main(words) == 1
    before = SOURCE[: SOURCE.index('return {}["missing"]' if kind == "key" else "raise OSError")]
    number = before.count("\n") + 1
    assert f"sglang run: {said} at {file}:{number}\n" in capsys.readouterr().err
    (failure,) = json.loads(bundle.read_text())["failures"]
    assert said in failure["error"]


@pytest.mark.parametrize("flags", [[], ["--stream"]])
def test_an_unknown_variable_loses_no_text(
    flags: list[str], file: str, mock: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"{file}:answer", "question=x", "--var", "zz", *flags]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("x: Rome\n")
    assert "no variable 'zz'" in shown.err


def test_an_argument_is_read_no_further_than_the_limit(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_file, "MAX_FILE_BYTES", 4)
    program, path = load_program(f"{file}:answer"), tmp_path / "text"
    for name, size in ((str(path), 5), ("/dev/zero", None), ("/proc/self/status", None)):
        if size is not None:
            path.write_text("x" * size)
        elif not Path(name).exists():
            continue
        with pytest.raises(ProgramFileError, match=f"{name} has more than 4 bytes"):
            fitting(program, {"question": f"@{name}"}, {"question": f"@{name}"})
    path.write_bytes(b"a\r\nb")
    given = {"question": f"@{path}"}
    assert fitting(program, given, given) == {"question": "a\nb"}
    path.write_bytes(b"\xff")
    with pytest.raises(ProgramFileError, match="is no text in UTF-8"):
        fitting(program, given, given)
