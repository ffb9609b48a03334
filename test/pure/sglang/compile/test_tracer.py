"""Tracer: what becomes a graph, and what is refused with the line that needed a value."""

from __future__ import annotations

import inspect

import pytest
import sglang as sgl
from sglang.compile.tracer import trace
from sglang.compiler import compile
from sglang.errors import TraceError, UnknownVariable
from sglang.ir.graph import Graph
from sglang.ir.graph_steps import MAIN, REQUIRED, Argument, Call, OpenArgument, Variable
from sglang.ir.nodes import ConstantText, Gen, SetVariable
from sglang.ir.params import GenParams
from sglang.run.live_nodes import Later


def traced(function, **known) -> Graph:
    graph = trace(sgl.function(function), known)
    graph.check()
    return graph


def nodes(graph: Graph, stream: int = MAIN) -> list:
    return [step.node for step in graph.streams[stream]]


REFUSED = {
    "f-string": lambda s, q: f"Q: {q}",
    "format": lambda s, q: "%s" % q,  # noqa: UP031
    "join": lambda s, q: str(q),
    "branch": lambda s, q: 1 if q else 2,
    "compare": lambda s, q: q == "a",
    "order": lambda s, q: q < 3,
    "not": lambda s, q: not q,
    "iterate": lambda s, q: list(q),
    "length": lambda s, q: len(q),
    "index": lambda s, q: q[0],
    "member": lambda s, q: "a" in q,
    "method": lambda s, q: q.strip(),
    "number": lambda s, q: int(q) + 1,
    "arithmetic": lambda s, q: q - 1,
    "times": lambda s, q: 2 * q,
    "count": lambda s, q: range(q),
    "call": lambda s, q: q(),
    "tokens": lambda s, q: s.__iadd__(sgl.gen("x", max_tokens=q)),
    "stop": lambda s, q: s.__iadd__(sgl.gen("x", stop=["a", q])),
    "name": lambda s, q: s.__iadd__(sgl.gen(q)),
    "choices": lambda s, q: s.__iadd__(sgl.select("x", choices=q)),
    "one choice": lambda s, q: s.__iadd__(sgl.select("x", choices=["a", q])),
    "variable name": lambda s, q: s.set_var(q, 1),
}  # fmt: skip


@pytest.mark.parametrize("needs", REFUSED.values(), ids=REFUSED)
def test_what_needs_the_value_is_refused_with_its_line(needs) -> None:
    line = inspect.getsourcelines(needs)[1]

    def of_argument(s, q):
        needs(s, q)

    def of_variable(s):
        s += sgl.gen("v")
        needs(s, s["v"])

    for function, what in ((of_argument, "argument 'q'"), (of_variable, "variable 'v'")):
        with pytest.raises(TraceError, match=rf"{what} is not known .*test_tracer.py:{line}$"):
            traced(function)


READING = {
    "text": lambda s: s.text(),
    "messages": lambda s: s.messages(),
    "meta": lambda s: s.get_meta_info("x"),
    "iterate": lambda s: list(s.text_iter()),
    "usage": lambda s: s.usage,
    "error": lambda s: s.error(),
}


@pytest.mark.parametrize("read", READING.values(), ids=READING)
def test_what_only_a_run_knows_is_not_read(read) -> None:
    line = inspect.getsourcelines(read)[1]

    def function(s):
        s += sgl.gen("x")
        read(s)

    with pytest.raises(TraceError, match=rf"only a run knows .*test_tracer.py:{line}$"):
        traced(function)


def test_values_are_appended_stored_passed_and_returned() -> None:
    def ask(s, question, note):
        s += question + note
        s += sgl.gen("answer")
        return s["answer"]

    def program(s, q):
        s += "Q: " + q + sgl.gen("x", 5)
        s["pair"] = [s["x"], q, 7]
        s.set_var("word", "constant")
        s += s["word"] + s["pair"][1]
        assert "x" in s
        assert "z" not in s
        s.sync()
        called = sgl.function(ask).run(s["x"], note="!", temperature=0.5)
        s += called["answer"]
        return {"all": (called.ret_value, q), "x": s.get_var("x")}

    graph = traced(program)
    assert nodes(graph) == [
        ConstantText("Q: "), Argument("q"), Gen("x", GenParams(max_new_tokens=5)),
        SetVariable("pair", [Variable(2, "x"), Argument("q"), 7]),
        SetVariable("word", "constant"), ConstantText("constant"), Argument("q"),
        Variable(10, "answer"),
    ]  # fmt: skip
    assert nodes(graph, 1) == [
        Call("ask", GenParams(temperature=0.5)), Variable(2, "x"), ConstantText("!"), Gen("answer"),
    ]  # fmt: skip
    assert graph.result == {
        "all": (Variable(10, "answer"), Argument("q")),
        "x": Variable(2, "x"),
    }


def test_a_batch_within_a_program_is_several_calls() -> None:
    @sgl.function
    def other(s, q):
        s += q + sgl.gen("x")

    def program(s, q):
        first, second = other.run_batch([{"q": q}, ("b",)], temperature=0.5)
        s += first["x"] + second["x"]

    graph = traced(program)
    assert nodes(graph, 2) == [
        Call("other", GenParams(temperature=0.5)), ConstantText("b"), Gen("x"),
    ]  # fmt: skip
    assert nodes(graph) == [Variable(2, "x"), Variable(5, "x")]


def test_a_program_given_the_state_is_traced_in_place() -> None:
    @sgl.function
    def inner(s, topic):
        s += "on " + topic
        return "done"

    def program(s, q):
        with s.user():
            assert inner(s, q) == "done"
        with s.copy() as copied:
            copied += sgl.gen("x")
        s += copied["x"]

    graph = traced(program)
    assert [type(node).__name__ for node in nodes(graph)] == [
        "RoleBegin", "ConstantText", "Argument", "RoleEnd", "Fork", "Variable",
    ]  # fmt: skip
    assert len(graph.streams) == 2


def test_joined_variables_are_lists() -> None:
    def program(s, q):
        forks = s.fork(3)
        forks[0] += sgl.gen("x")
        forks[2] += sgl.gen("x")
        forks[2]["y"] = "why"
        forks.join()
        assert s["x"][1] is None
        assert s["y"] == [None, None, "why"]
        for value in [s["x"][0], s["x"][2]]:
            s += value

    graph = traced(program)
    first, third = graph.streams[1][1].number, graph.streams[3][1].number
    assert nodes(graph)[2:] == [Variable(first, "x"), Variable(third, "x")]
    with pytest.raises(ValueError, match="mode is 'sum'"):
        traced(lambda s: s.fork(2).join("sum"))


def test_which_arguments_stay_open() -> None:
    def program(s, a, b="B", c=None, *rest, d, e=5, **more):
        s += a + b + d
        assert c is None

    program_ = sgl.function(program)
    assert trace(program_, {}).arguments == (
        OpenArgument("a"), OpenArgument("b", "B"),
        OpenArgument("d", REQUIRED, True), OpenArgument("e", 5, True),
    )  # fmt: skip
    bound = trace(program_.bind(a="A"), {"d": "D", "extra": 1})
    assert [parameter.name for parameter in bound.arguments] == ["b", "e"]
    assert nodes(bound) == [ConstantText("A"), Argument("b"), ConstantText("D")]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        traced(lambda s, q: None, z=1)


def test_other_things_a_graph_cannot_be() -> None:
    async def waits(s):
        pass

    def other(s):
        s += "x"

    with pytest.raises(TraceError, match="waits is asynchronous"):
        traced(waits)
    with pytest.raises(TraceError, match="returns a state"):
        traced(lambda s: [s])
    with pytest.raises(TraceError, match=r"gives backend.*test_tracer.py:\d+$"):
        traced(lambda s: sgl.function(other).run(backend=sgl.Mock()))
    with pytest.raises(TraceError, match=r"only a run knows; at .*test_tracer.py:\d+$"):
        traced(lambda s: s.__iadd__(Later((), lambda: ConstantText("x"))))
    with pytest.raises(UnknownVariable, match=r"no variable 'y'; there are \['x'\] at .*py:\d+$"):
        traced(lambda s: (s.set_var("x", 1), s["y"]))


def test_a_failed_trace_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        traced(lambda s: 1 / 0)
    state = sgl.function(lambda s: s.__iadd__(sgl.gen("x"))).run(backend=sgl.Mock(["y"]))
    assert state["x"] == "y"
    assert compile(sgl.function(lambda s: None)).graph.streams == {MAIN: ()}


def test_what_python_itself_refuses_is_refused_with_its_line() -> None:
    @sgl.function
    def judge(s):
        forks = s.fork(2)
        forks += sgl.gen("judgment")
        s += "\n".join(f["judgment"] for f in forks)  # the line

    line = judge.func.__code__.co_firstlineno + 4
    with pytest.raises(sgl.TraceError, match=rf"data-dependent.*test_tracer.py:{line}$"):
        judge.trace()

    @sgl.function
    def wrong(s):
        len(5)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len") as raised:
        wrong.trace()
    assert not isinstance(raised.value, sgl.TraceError)
