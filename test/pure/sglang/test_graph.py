"""Graph: dependencies, printing, JSON and what is refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
import sglang as sgl
from sglang.compiler import compile
from sglang.errors import TraceError
from sglang.ir.graph import Graph
from sglang.ir.graph_steps import (
    Argument,
    Call,
    Dependency,
    GetForkItem,
    Join,
    OpenArgument,
    Step,
    Variable,
)
from sglang.ir.nodes import ConstantText, Fork, Gen, Image, SeparateReasoning, SetVariable
from sglang.ir.params import GenParams
from sglang.ir.prompt_media import Media
from sglang.ir.source_location import Location


@sgl.function
def branches(s, topic, style="plain"):
    s += "About " + topic
    forks = s.fork(2)
    forks += lambda i: f" {i}:" + sgl.gen("x", max_tokens=4)
    forks.join()
    s += "Best: " + s["x"][1] + sgl.select("y", ["a", "b"])
    return {"best": s["y"], "style": style}


def graph_of(*nodes, **more) -> Graph:
    """Stream 0 with ``nodes``, step numbers from 0; ``more``: ``s1=[steps]``."""
    here = Location("prog.py", 7)
    main = tuple(Step(i, node, here) for i, node in enumerate(nodes))
    others = {int(name[1:]): tuple(steps) for name, steps in more.items()}
    return Graph("g", (OpenArgument("a"),), {0: main, **others})


def test_the_listing_and_the_drawing() -> None:
    graph = compile(branches).graph
    line = branches.func.__code__.co_firstlineno + 2
    assert str(graph).splitlines() == [
        "branches(topic, style='plain')",
        "stream 0",
        f"    0 ConstantText 'About '  # test_graph.py:{line}",
        f"    1 Argument 'topic'  # test_graph.py:{line}",
        f"    2 Fork (1, 2)  # test_graph.py:{line + 1}",
        f"    9 Join (6, 8) ('x',)  # test_graph.py:{line + 3}",
        f"   10 ConstantText 'Best: '  # test_graph.py:{line + 4}",
        f"   11 Variable 8 'x'  # test_graph.py:{line + 4}",
        f"   12 Select 'y' ('a', 'b') token_length_normalized  # test_graph.py:{line + 4}",
        "stream 1",
        f"    3 GetForkItem 2 0  # test_graph.py:{line + 1}",
        f"    5 ConstantText ' 0:'  # test_graph.py:{line + 2}",
        f"    6 Gen 'x' max_new_tokens=4  # test_graph.py:{line + 2}",
        "stream 2",
        f"    4 GetForkItem 2 1  # test_graph.py:{line + 1}",
        f"    7 ConstantText ' 1:'  # test_graph.py:{line + 2}",
        f"    8 Gen 'x' max_new_tokens=4  # test_graph.py:{line + 2}",
        "returns {'best': Variable(source=12, name='y'), 'style': Argument(name='style')}",
    ]
    assert "  2 -> 3 [style=dashed]" in graph.dot()
    assert """label="Gen 'x' max_new_tokens=4\"""" in graph.dot()


def test_dependencies_within_and_between_streams() -> None:
    edges = compile(branches).graph.dependencies()
    assert [e for e in edges if e.inter] == [
        Dependency(6, 9, True), Dependency(8, 9, True), Dependency(8, 11, True),
        Dependency(2, 3, True), Dependency(2, 4, True),
    ]  # fmt: skip
    assert [e.after for e in edges if not e.inter] == [1, 2, 9, 10, 11, 12, 5, 6, 7, 8]


def test_json_there_and_back() -> None:
    params = GenParams(
        stop=("a", "b"), dtype=int, logit_bias={5: 1.5}, json_schema={"type": "object"},
        ebnf="root ::= [a]", structural_tag={"triggers": ["<"]},
    )  # fmt: skip
    graph = graph_of(
        ConstantText("ünïcode\n"),
        Image(Argument("a")),
        Image(Media("image", b"\x89PNG", "image/png")),
        SeparateReasoning((ConstantText("t"), Gen("r", GenParams(n=2))), "model"),
        Gen("x", params),
        SetVariable("y", {"k": [Variable(4, "x"), (1, None)]}),
        s1=[Step(9, Call("other", GenParams(temperature=0.5))), Step(10, Gen(None))],
    )
    read = Graph.from_json(graph.to_json())
    assert read == replace(graph, streams={
        **graph.streams,
        0: tuple(replace(s, node=Gen("x", replace(params, dtype="int"))) if s.number == 4 else s
                 for s in graph.streams[0]),
    })  # fmt: skip
    whole = compile(branches).graph
    assert Graph.from_json(whole.to_json()) == whole


def test_json_cannot_carry_every_value() -> None:
    with pytest.raises(ValueError, match=r"step 0 \(SetVariable\) at prog.py:7 holds <object"):
        graph_of(SetVariable("x", object())).to_json()


def changed(path: list, value: object) -> str:
    body = json.loads(compile(branches).graph.to_json())
    target = body
    for key in path[:-1]:
        target = target[key]
    if value is None:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return json.dumps(body)


STEPS = ["streams", 0, "steps"]


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (["version"], 2, "version 2; this sglang reads 1"),
        (["version"], None, "the graph has no field 'version'"),
        (["colour"], "red", "the graph has field 'colour'"),
        ([*STEPS, 0, "op"], "Loop", "step 0 has op 'Loop'; the ops are"),
        ([*STEPS, 0, "size"], 3, r"step 0 \(ConstantText\) has field 'size'"),
        ([*STEPS, 0, "text"], None, r"step 0 \(ConstantText\) has no field 'text'"),
        (["streams", 1, "steps", 2, "params", "heat"], 3, r"step 6 \(params\) has field 'heat'"),
        ([*STEPS, 6, "method"], "dice", "step 12 has method 'dice'"),
        (["result"], {"$what": 1}, "is not a value that to_json writes"),
        (["streams"], 5, "not a graph: TypeError"),
        ([*STEPS, 0, "number"], 1, "two steps of the same number"),
    ],
)
def test_json_of_another_kind_is_refused(path: list, value: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Graph.from_json(changed(path, value))


FORK = Step(5, GetForkItem(0, 0))


@pytest.mark.parametrize(
    ("graph", "complaint"),
    [
        (graph_of(Argument("b")), r"step 0 \(Argument\) at prog.py:7 reads argument 'b'"),
        (graph_of(Gen("x"), Variable(0, "y")), "reads variable 'y', which step 0 does not define"),
        (graph_of(Variable(9, "y")), "which step 9 does not define"),
        (replace(graph_of(), result=[Variable(3, "x")]), "the result reads variable 'x'"),
        (graph_of(Variable(1, "x"), Gen("x")), r"another: step 1 .*, step 0 \(Variable\) at prog"),
        (graph_of(Fork((1,))), "step 0 .* makes stream 1, which does not exist"),
        (graph_of(Fork((1,)), s1=[Step(5, Gen("x"))]), "stream 1, which does not begin there"),
        (graph_of(s1=[Step(5, Gen("x"))]), "stream 1 does not begin with GetForkItem or Call"),
        (graph_of(ConstantText("a"), s1=[FORK]), "which is no Fork with that branch"),
        (graph_of(Fork((1, 1)), s1=[FORK]), "makes stream 1, which does not begin there"),
        (graph_of(Join((7,))), "step 0 .* waits for step 7, which does not exist"),
        (graph_of(Join((), mode="x")), "has mode 'x'"),
        (graph_of(Call("f")), "which nothing begins"),
        (Graph("g", (), {}), "'g' has no stream 0"),
        (
            graph_of(
                Variable(6, "x"), Fork((1,)), s1=[Step(5, GetForkItem(1, 0)), Step(6, Gen("x"))]
            ),
            "a fork is used before it is made",
        ),
        (
            graph_of(Gen("x"), s1=[Step(5, Call("f")), Step(6, Call("g"))]),
            r"step 6 \(Call\) is not the first step of stream 1",
        ),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(graph: Graph, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        graph.check()


# -- texts that are sums of others ----------------------------------------------------------------


@sgl.function
def summed(s, topic):
    s += "Q: " + topic + sgl.gen("a")
    s["note"] = "<" + s["a"] + "|" + topic
    s += " again " + s["note"] + sgl.gen("b")
    return {"both": s["a"] + s["b"], "list": ["pre " + s["note"]], "topic": topic + "!"}


def test_sums_of_texts_are_values() -> None:
    backend = sgl.Mock(lambda prompt, params: f" {len(prompt.text)}")
    plain = summed.run("dogs", backend=backend)
    compiled = summed.compile()
    read = type(compiled)(compiled.graph.from_json(compiled.graph.to_json()), None)
    for program in (compiled, read):
        state = program.run("dogs", backend=backend)
        assert state.ret_value == plain.ret_value
        assert state["note"] == plain["note"] == "< 7|dogs"
        assert asyncio.run(program.arun("dogs", backend=backend)).ret_value == plain.ret_value


@pytest.mark.parametrize("read", [
    lambda text: text == "yes!", bool, len, str, lambda text: "a" in text, lambda t: t[0],
    lambda text: f"{text}", lambda text: text.upper(),
])  # fmt: skip
def test_a_sum_with_an_unknown_text_is_unknown(read) -> None:
    @sgl.function
    def program(s):
        s += "Q" + sgl.gen("a")
        if read("Say " + s["a"] + "!"):
            s += "yes"

    with pytest.raises(TraceError, match="the value of variable 'a' is not known"):
        program.compile()
