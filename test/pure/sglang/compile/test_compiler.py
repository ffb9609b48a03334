"""CompiledProgram: arguments, saving, errors, and all the parallelism that the graph leaves."""

from __future__ import annotations

import asyncio
import builtins
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from sglang.compiler import CompiledProgram, compile, load
from sglang.ir.graph import Graph

PYTHON = Path(sgl.__file__).parents[1]


@sgl.function
def ask(s, question, style="plain"):
    s += "Answer in a few words, truthfully and without any introduction at all.\n" + question
    s += style + sgl.gen("x") + "."
    return [s["x"], question]


def test_it_runs_as_a_function_runs() -> None:
    mock = sgl.Mock(lambda prompt, params: str(params.max_new_tokens))
    program = compile(ask, mock)
    state = program.run("Why?", max_new_tokens=9)
    assert state.text().endswith("Why?plain9.")
    assert state.ret_value == ["9", "Why?"]
    assert program.bind(style="S").run(question="Q", backend=mock).text().endswith("QS128.")
    assert "".join(program.run("Why?", stream=True).text_iter("x")) == "128"
    states = program.run_batch([("a",), {"question": "b"}], temperature=0.5)
    assert [s.ret_value[1] for s in states] == ["a", "b"]
    assert asyncio.run(program.bind(style="S").arun("c")).ret_value == ["128", "c"]
    assert mock.calls[3].kind == "commit"
    assert mock.calls[3].prompt.text == program.cache(mock) == program.graph.constant_prefix()


def test_arguments_are_checked_as_pythons() -> None:
    program = compile(ask, sgl.Mock(), style="short")
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "missing a required argument: 'question'"),
        ({"question": "q", "colour": 1}, "unexpected keyword argument 'colour'"),
        ({"question": "q", "style": "x"}, "unexpected keyword argument 'style'"),
        ({"question": None}, r"'question' is None.*compile\(question=None\)"),
        ({"question": 5}, "cannot append int 5"),
    ]
    for arguments, complaint in cases:
        with pytest.raises(TypeError, match=complaint):
            program.run(**arguments)


@pytest.mark.slow
def test_a_saved_program_runs_without_its_source(tmp_path: Path) -> None:
    path = tmp_path / "ask.json"
    compile(ask).save(path)
    code = (
        "import sglang as sgl, sys\n"
        "from sglang.compiler import load\n"
        "program = load(sys.argv[1], sgl.Mock(['42']))\n"
        "print(program.__name__, program.run('Six times seven?')['x'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": str(PYTHON)}, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == "ask 42\n", done.stderr
    path.write_text("{}")
    with pytest.raises(ValueError, match="no field 'version'"):
        load(path)


def test_a_failure_has_the_line_of_the_program(tmp_path: Path) -> None:
    def program(s, q):
        forks = s.fork(2)
        forks += q + sgl.gen("x")
        forks.join()
        s += "never"

    line = program.__code__.co_firstlineno + 2
    compiled = compile(sgl.function(program))
    compiled.save(tmp_path / "p.json")
    for one in (compiled, load(tmp_path / "p.json")):
        with pytest.raises(sgl.ProgramError, match=rf"lost at .*test_compiler.py:{line}$"):
            one.run("Q", backend=sgl.Mock(lambda prompt, params: OSError("lost")))


def test_a_call_that_nobody_reads_counts_and_fails() -> None:
    @sgl.function
    def other(s, q):
        s += q + sgl.gen("x")

    @sgl.function
    def program(s, q):
        other.run(q)
        s += "end"

    assert compile(program).run("q", backend=sgl.Mock(["x"])).usage.calls == 1
    with pytest.raises(sgl.ProgramError, match=r"lost at .*test_compiler.py:\d+$"):
        compile(program).run("q", backend=sgl.Mock([OSError("lost")]))


def test_a_compiled_program_within_another_is_traced_too() -> None:
    @sgl.function
    def inner(s, q):
        s += q
        forks = s.fork(2)
        forks += sgl.gen("y")
        forks.join()
        s += forks[1]["y"] + sgl.gen("z")
        return s["y"]

    def program_with(called):
        def program(s, q):
            state = called.run(q)
            called(s, state["z"])
            s += state["y"][0] + state.ret_value[1]

        return sgl.function(program)

    graph = program_with(compile(inner)).trace()
    assert str(graph) == str(program_with(inner).trace())
    assert Graph.from_json(graph.to_json()) == graph
    state = CompiledProgram(graph, sgl.Mock(lambda prompt, params: "a")).run("q")
    assert state.text() == "aaaaa"
    again = compile(compile(inner), q="Q").graph
    assert again.arguments == ()
    with pytest.raises(sgl.TraceError, match=r"inner\.run gives backend"):
        program_with(compile(inner, sgl.Mock())).trace()
    with pytest.raises(TypeError, match="'q' is None"):
        sgl.function(lambda s: compile(inner).run(None)).trace()


def test_a_state_goes_on_behind_a_compiled_program() -> None:
    def inner(s):
        s += sgl.gen("y")
        s += "again " + s["y"]

    @sgl.function
    def program(s):
        compile(sgl.function(inner))(s)
        s += sgl.gen("y")

    mock = sgl.Mock(lambda prompt, params: str(len(prompt.text)), delay=0.01)
    assert program.run(backend=mock).text() == "0again 08"


def test_its_joins_see_what_the_branches_had_by_then() -> None:
    def inner(s, mode):
        forks = s.fork(2)
        forks += lambda i: f" {i}" + sgl.gen("x")
        forks.join(mode)
        forks[0] += " late" + sgl.gen("x")

    def program(s):
        called(s)
        s += s["x"][0] + s["x"][1] if "x" in s else " end"

    for mode, said in (("gather_variable", "01"), ("concate_and_append", " 00 11 end")):
        graph = compile(sgl.function(inner), mode=mode).graph
        # Numbers by which the join is visited after all that the branches append.
        main = tuple(replace(step, number=step.number + 100) for step in graph.streams[0][1:])
        graph = replace(graph, streams={**graph.streams, 0: (graph.streams[0][0], *main)})
        called = CompiledProgram(graph)
        mock = sgl.Mock(lambda prompt, params: prompt.text[-1])
        assert compile(sgl.function(program)).run(backend=mock).text() == said


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (PYTHON.parent / "docs" / "compiler.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    (tmp_path / "page.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sgl.global_config, "default_backend", None)  # the page sets it
    mock = sgl.Mock()
    monkeypatch.setattr(sgl, "Engine", lambda: mock)
    exec(builtins.compile(code, "page.py", "exec"), {})
    assert (tmp_path / "tips.json").exists()
    assert len(mock.calls) == 10


def test_everything_independent_is_in_flight_at_once() -> None:
    together = threading.Barrier(6)

    def answer(prompt, params):
        if "alone" not in prompt.text:
            together.wait(timeout=60)
        return "x"

    @sgl.function
    def call(s, q):
        s += q + sgl.gen("x")

    @sgl.function
    def program(s, q):
        calls = [call.run(q) for _ in range(3)]
        forks = s.fork(3)
        forks += sgl.gen("x")
        forks.join()
        for called in calls:
            s += called["x"]
        s += "alone" + s["x"][0] + sgl.gen("y")

    state = compile(program).run("q", backend=sgl.Mock(answer))
    assert state.text() == "xxxalonexx"


def test_waiting_holds_no_thread() -> None:
    running: list[int] = []

    def answer(prompt, params):
        running.append(sum(t.name == "sglang-worker" for t in threading.enumerate()))
        return "x"

    @sgl.function
    def program(s):
        s += sgl.gen("x")
        for _ in range(200):
            with s.copy() as other:
                other += s["x"] + sgl.gen("y")
        s += other["y"]

    compile(program).run(backend=sgl.Mock(answer, delay=0.05))
    assert len(running) == 201
    assert running[0] <= 20  # the first call, which all the others wait for


@pytest.mark.slow
def test_streams_wait_for_one_another_at_the_same_moment() -> None:
    @sgl.function
    def other(s, q):
        s += q + sgl.gen("x") + q + sgl.gen("y")

    @sgl.function
    def program(s):
        for i in range(20):
            s += sgl.gen(f"v{i}")
            called = other.run(s[f"v{i}"])
            s += called["x"] + called["y"]

    compiled, mock = compile(program), sgl.Mock(lambda prompt, params: "x")
    assert {compiled.run(backend=mock).text() for _ in range(60)} == {"xxx" * 20}


def test_a_variable_is_read_as_it_was() -> None:
    @sgl.function
    def say(s, word):
        s += "say " + word + sgl.gen("said")

    @sgl.function
    def program(s, q):
        s += sgl.gen("x")
        old = s["x"]
        first = say.run(old)
        s += " " + sgl.gen("x")
        s += " " + old + " " + s["x"] + " " + first["said"]
        forks = s.fork(2)
        forks += sgl.gen("y")
        forks.join()
        forks[0] += s["y"][1] + sgl.gen("y")
        return [old, s["x"], s["y"], forks[0]["y"]]

    def answer(prompt, params):
        return str(len(prompt.text))

    mock = sgl.Mock(answer)
    expected = program.run("q", backend=mock)
    for threads in (True, False):
        state = compile(program).run("q", backend=sgl.Mock(answer), use_thread=threads)
        assert state.text() == expected.text() == "0 2 0 2 5"
        assert state.ret_value == expected.ret_value


def test_joined_texts_are_those_before_the_join() -> None:
    @sgl.function
    def program(s):
        s += "begin"
        forks = s.fork(2)
        forks += lambda i: f" {i}" + sgl.gen("x")
        forks.join("concate_and_append")
        forks[0] += " late"
        s += " end"

    state = compile(program).run(backend=sgl.Mock(["a", "b"]), use_thread=False)
    assert state.text() == "begin 0a 1b end"


@dataclass
class Tip:
    text: str
    stars: int


def test_graph_carries_schema_of_a_type() -> None:
    @sgl.function
    def tip(s):
        s += sgl.gen("tip", schema=Tip)

    program = compile(tip)
    mock = sgl.Mock(lambda prompt, params: '{"text": "sleep", "stars": 5}')
    assert program.run(backend=mock).value("tip") == Tip("sleep", 5)
    read = Graph.from_json(program.graph.to_json())
    step: Any
    (step,) = read.streams[0]
    assert step.node.params.schema["properties"].keys() == {"text", "stars"}
    assert CompiledProgram(read, mock).run().value("tip") == {"text": "sleep", "stars": 5}
