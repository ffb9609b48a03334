"""Transforms in programs: interpreted, compiled and read back from JSON they make the same."""

from __future__ import annotations

import asyncio

import pytest
import sglang as sgl
from sglang.compiler import CompiledProgram
from sglang.errors import ProgramError, TraceError
from sglang.ir.graph import Graph
from sglang.ir.graph_passes import prune

REPLY = 'Here: {"price": "1,200", "tags": ["a", "b"]}'


@sgl.function
def offer(s, item):
    s += "Offer for " + item + ": "
    s += sgl.gen("answer")
    s["price"] = (sgl.transforms.json("price") | sgl.transforms.number()).of("answer")
    s["tags"] = sgl.transforms.json("tags").of("answer")
    s["line"] = sgl.transforms.join("+").of("tags")
    s += "\nTags: "
    s += s["line"]
    return s["price"]


def _made(state):
    return state.text(), state["price"], state["tags"], state["line"], state.ret_value


def _backend():
    return sgl.Mock([REPLY])


def test_transforms_make_variables():
    text, price, tags, line, returned = _made(offer.run("tea", backend=_backend()))
    assert text == f"Offer for tea: {REPLY}\nTags: a+b"
    assert (price, tags, line, returned) == (1200, ["a", "b"], "a+b", 1200)


def test_compiled_program_makes_the_same():
    plain = _made(offer.run("tea", backend=_backend()))
    compiled = offer.compile()
    assert _made(compiled.run("tea", backend=_backend())) == plain
    assert _made(asyncio.run(compiled.arun("tea", backend=_backend()))) == plain
    again = CompiledProgram(Graph.from_json(compiled.graph.to_json()))
    assert again.graph == compiled.graph
    assert _made(again.run("tea", backend=_backend())) == plain


def test_failed_transform_names_value_and_line():
    state = offer.run("tea", backend=sgl.Mock(["no offer"]), stream=True)
    with pytest.raises(ProgramError, match="transform 'json' cannot read 'no offer'") as caught:
        state["price"]
    assert caught.value.filename == __file__
    assert isinstance(caught.value.__cause__, sgl.transforms.TransformError)


def test_unknown_variable_is_named():
    @sgl.function
    def program(s):
        s["y"] = sgl.transforms.strip().of("x")

    with pytest.raises(ProgramError, match="transform to 'y' is given variable 'x'"):
        program.run(backend=_backend())
    with pytest.raises(sgl.UnknownVariable, match="no variable 'x'"):
        program.trace()


def test_constant_and_argument_are_transformed():
    @sgl.function
    def program(s, q):
        s["own"], s["given"] = " a ", q
        s["x"] = sgl.transforms.strip().of("own")
        s["y"] = sgl.transforms.strip().of("given")
        s += s["x"]
        s += s["y"]

    assert program.run(" b ", backend=_backend()).text() == "ab"
    assert program.compile().run(" b ", backend=_backend()).text() == "ab"


def test_fork_has_transform_of_its_own():
    @sgl.function
    def program(s):
        forks = s.fork(2)
        for index, fork in enumerate(forks):
            fork["raw"] = f" {index} "
            fork["n"] = (sgl.transforms.strip() | sgl.transforms.number()).of("raw")
        forks.join()

    assert program.run(backend=_backend())["n"] == [0, 1]
    assert program.compile().run(backend=_backend())["n"] == [0, 1]


def test_transform_of_branching_is_traced_as_unknown():
    @sgl.function
    def program(s):
        s += sgl.gen("x")
        s["ok"] = sgl.transforms.bool().of("x")
        if s["ok"]:
            s += "yes"

    assert program.run(backend=sgl.Mock(["Yes."])).text() == "Yes.yes"
    with pytest.raises(TraceError, match="variable 'ok' is not known"):
        program.trace()


def test_prune_drops_unwanted_transform():
    ops = [type(step.node).__name__ for step in prune(offer.trace(), ["line"]).streams[0]]
    assert ops.count("Transformed") == 3  # the result is the price
    graph = prune(offer.trace(), [])
    assert [type(step.node).__name__ for step in graph.streams[0]].count("Transformed") == 1


def test_words_refuse_what_makes_no_sense():
    for wrong in (lambda: sgl.transforms.regex("("), lambda: sgl.transforms.list("yaml")):
        with pytest.raises(sgl.transforms.TransformError):
            wrong()
    with pytest.raises(TypeError, match="give the name of a variable"):
        sgl.transforms.strip().of(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        sgl.transforms.strip() | "x"  # type: ignore[operator]
    with pytest.raises(TypeError, match="a transform makes a variable"):
        "x" + sgl.transforms.strip().of("x")
    chain = sgl.transforms.strip()
    for _ in range(16):
        chain |= sgl.transforms.strip()
    with pytest.raises(sgl.transforms.TransformError, match="at most 16"):
        chain.of("x").node("y")


def test_apply_is_the_same_function():
    chain = (
        sgl.transforms.xml("n")
        | sgl.transforms.enum("A", "B")
        | sgl.transforms.template("{value}!")
    )
    assert chain.apply("<n> b </n>") == "B!"
    assert sgl.transforms.date("%d.%m.%Y").apply("1.2.2024") == "2024-02-01"
    assert sgl.transforms.regex(r"(\d+)", 1).apply("a12") == "12"
