"""Programs of the language on a real server: the same states as runs, token for token."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import sglang as sgl
from helpers.launched import best_model, launched
from helpers.paths import ROOT
from helpers.random_programs import made, random_program
from helpers.seeds import LONG
from sglang.errors import ProgramError

TOOLBOX = '''
def double(number: str) -> str:
    """Twice a number."""
    return str(2 * int(number))


TOOLS = [double]
'''
COUNT = 500 if LONG else 8


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sgl.RuntimeEndpoint]:
    folder: Path = tmp_path_factory.mktemp("model")
    tools = folder / "operators_tools.py"
    tools.write_text(TOOLBOX, encoding="utf-8")
    with launched([*best_model(folder), "--toolbox", str(tools)]) as server:
        yield sgl.RuntimeEndpoint(server.url)


@sgl.function
def write(s, task, limit=8):
    s += sgl.system("Be short.") + sgl.user("Write " + task)
    s += sgl.assistant(sgl.gen("code", max_tokens=limit, temperature=0))
    s += sgl.user("And a test.")
    s += sgl.assistant(sgl.gen("test", max_tokens=8, temperature=1, seed=3))
    return s["test"]


@pytest.mark.parametrize("seeded", [False, True])
def test_random_program_makes_the_same_everywhere(
    backend: sgl.RuntimeEndpoint, seeded: bool
) -> None:
    begin = COUNT * seeded
    for seed in range(begin, begin + COUNT):
        program = random_program(seed, seeded)
        plain = made(program.run("Where?", backend=backend))
        assert made(program.compile().run("Where?", backend=backend)) == plain, seed
        assert made(program.run("Where?", backend=backend, on="server")) == plain, seed


def test_chain_of_futures_is_that_of_runs(backend: sgl.RuntimeEndpoint) -> None:
    text = "a game"
    for _ in range(3):
        text = write.run(text, backend=backend).ret_value
    future = write.submit("a game", backend=backend, criteria="latency")["test"]
    for _ in range(2):
        future = write.submit(future)["test"]
    assert future.get("latency", timeout=60) == text


def test_example_of_the_paper(backend: sgl.RuntimeEndpoint) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "parrot_snake_game.py"))
    code = example["write_code"].run("a snake game", backend=backend)["code"]
    test = example["write_test"].run("a snake game", code, backend=backend)["test"]
    assert example["write_snake_game"](backend) == (code, test)


def test_toolbox_runs_the_tools_that_are_named(backend: sgl.RuntimeEndpoint) -> None:
    called = []

    def double(number: str) -> int:
        called.append(number)
        return 2 * int(number)

    @sgl.function
    def program(s, number):
        s["n"] = number
        s += "Twice " + number + " is " + sgl.tool("twice", double, of="n")
        s += sgl.gen("more", max_tokens=4, temperature=0)

    plain = made(program.run("21", backend=backend))
    assert made(program.submit("21", backend=backend).result()) == plain
    assert called == ["21", "21"]
    there = program.submit("21", backend=backend, server_tools=["double"])
    assert made(there.result()) == plain
    assert called == ["21", "21"]
    with pytest.raises(ProgramError, match="tool 'double'"):
        program.submit("x", backend=backend, server_tools=["double"])["twice"].get(timeout=60)


def test_text_is_streamed(backend: sgl.RuntimeEndpoint) -> None:
    submitted = write.submit("a poem", 64, backend=backend, stream=True)
    pieces = list(submitted["code"])
    assert "".join(pieces) == write.run("a poem", 64, backend=backend)["code"]


def test_failure_reaches_dependents_with_the_line(backend: sgl.RuntimeEndpoint) -> None:
    @sgl.function
    def number(s, text):
        s += "Q: " + text + "\nA:" + sgl.gen("answer", max_tokens=4, temperature=0)
        s["n"] = sgl.transforms.json("n").of("answer")
        s += s["n"] + sgl.gen("more", max_tokens=4)

    first = number.submit("why", backend=backend)
    second = write.submit(first["more"], backend=backend)
    assert isinstance(first["answer"].get(timeout=60), str)
    for future in (first["n"], first["more"], second["test"]):
        with pytest.raises(ProgramError, match="transform 'json' cannot read") as caught:
            future.get(timeout=60)
        assert caught.value.filename == __file__


def test_cancel_frees_the_engine(backend: sgl.RuntimeEndpoint) -> None:
    @sgl.function
    def book(s):
        s += "Once" + sgl.gen("code", max_tokens=3000, ignore_eos=True, temperature=0)

    submitted = book.submit(backend=backend)
    other = write.submit(submitted["code"], backend=backend)
    with pytest.raises(TimeoutError):
        submitted["code"].get(timeout=0.3)
    submitted.cancel()
    for future in (submitted["code"], other["test"]):
        with pytest.raises(sgl.SglangError):
            future.get(timeout=60)
    assert write.run("a poem", backend=backend, on="server")["code"]


def test_refused_graph_names_the_step(backend: sgl.RuntimeEndpoint) -> None:
    @sgl.function
    def many(s):
        for number in range(5000):
            s[f"v{number}"] = number

    with pytest.raises(sgl.BackendError, match=r"at most 4096 \(--max-program-steps\)"):
        many.run(backend=backend, on="server")
