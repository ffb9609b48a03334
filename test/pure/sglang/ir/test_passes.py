"""Passes: folding, pruning, the constant prefix, and code movement."""

from __future__ import annotations

import pytest
import sglang as sgl
from sglang.compile.code_movement import constants_first, pieces_of, propose_with, refusal, reorder
from sglang.compile.tracer import trace
from sglang.compiler import CompiledProgram, compile
from sglang.ir import graph_passes as passes
from sglang.ir.chat_template import TEMPLATES
from sglang.ir.graph import Graph
from sglang.ir.graph_passes import fold, prune
from sglang.ir.graph_steps import MAIN, Argument
from sglang.ir.nodes import ConstantText, Gen


def traced(function) -> Graph:
    return trace(sgl.function(function), {})


def nodes(graph: Graph) -> list:
    return [step.node for step in graph.streams[MAIN]]


def test_folding() -> None:
    def program(s, q, r):
        s += "a" + sgl.gen("x") + "" + q + "b"
        s += "" + r + "c"
        s["kept"] = [q]
        return q

    graph = fold(traced(program), {"q": "Q"})
    assert nodes(graph)[:5] == [
        ConstantText("a"), Gen("x"), ConstantText("Qb"), Argument("r"), ConstantText("c"),
    ]  # fmt: skip
    assert nodes(graph)[5].value == ["Q"]
    assert graph.result == "Q"
    assert [parameter.name for parameter in graph.arguments] == ["r"]
    with pytest.raises(TypeError, match="program has no argument 'z'"):
        fold(graph, {"z": 1})


def test_what_a_join_sees_does_not_grow_by_folding() -> None:
    def program(s):
        forks = s.fork(2)
        forks += "a"
        forks.join("concate_and_append")
        forks[0] += "b"

    assert fold(traced(program)).streams[1][1:] == traced(program).streams[1][1:]


def test_pruning() -> None:
    @sgl.function
    def other(s, q):
        s += q + sgl.gen("x")

    @sgl.function
    def program(s, q):
        s += "Q: " + q + sgl.gen("seen")
        wanted, unwanted = other.run("w" + s["seen"]), other.run("u")
        forks = s.fork(2)
        forks += sgl.gen("branch") + sgl.gen("more")
        forks.join()
        with s.copy() as aside:
            aside += unwanted["x"] + sgl.gen("aside")
        s += wanted["x"] + sgl.gen("last") + "tail" + sgl.gen("later")
        s["copied"] = s["branch"][1]

    def calls(*keep: str) -> list[str]:
        mock = sgl.Mock(lambda prompt, params: "x")
        CompiledProgram(prune(compile(program).graph, keep), mock).run("q")
        return sorted(call.prompt.text for call in mock.calls if call.kind == "gen")

    assert calls() == []
    assert calls("seen") == ["Q: q"]
    assert calls("branch") == ["Q: q", "Q: qx", "Q: qx"]
    assert calls("copied") == ["Q: q", "Q: qx"]
    assert calls("last") == ["Q: q", "Q: qxx", "wx"]
    assert len(calls("later", "more", "copied")) == 8
    with pytest.raises(ValueError, match="program makes no variable 'x'"):
        calls("x")


def test_the_work_of_pruning_grows_with_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(s):
        for number in range(100):
            s += "text" + sgl.gen(f"v{number}")
        forks = s.fork(100)
        forks += sgl.gen("x") + sgl.gen("y")
        forks.join()
        return [s["x"], s["y"]]

    graph, marked = traced(program), []
    mark = passes._Live._mark
    monkeypatch.setattr(
        passes._Live, "_mark", lambda live, step: (marked.append(step), mark(live, step))
    )
    prune(graph, ["v0"])
    assert len(marked) < 5 * len(graph.steps())


def test_the_constant_prefix() -> None:
    def program(s, q):
        s += sgl.system("Be brief.")
        with s.user():
            s["style"] = q
            s += "Q: " + q
        s += sgl.assistant(sgl.gen("x"))

    graph = traced(program)
    assert graph.constant_prefix() == "SYSTEM:Be brief.\nUSER:Q: "
    chatml = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nQ: "
    assert graph.constant_prefix(TEMPLATES["chatml"]) == chatml


def template(text: str) -> Graph:
    """A program of one prompt; "{q}" is its argument."""

    def program(s, q):
        for i, part in enumerate(text.split("{q}")):
            s += q + part if i else part
        s += sgl.gen("x")

    return traced(program)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One. Two!\nThree {q}\n\n", ["One.", "Two!", "Three {q}"]),
        (
            "Text:\n{q}\nRules:\n- a\n- b\n1. c\nEnd",
            ["Text:\n{q}", "Rules:\n- a\n- b\n1. c", "End"],
        ),
        ("# Task\n\nDo it, e.g. so\n{q}", ["# Task\n\nDo it, e.g.", "so", "{q}"]),
        ("U.S. law 2.5 {q}. Then", ["U.S. law 2.5 {q}.", "Then"]),
        ("\n {q}{q}", ["\n {q}{q}"]),
    ],
)
def test_where_pieces_end(text: str, pieces: list[str]) -> None:
    found = pieces_of(template(text))
    assert [str(piece) for piece in found] == pieces
    assert "".join(str(piece) + piece.tail for piece in found) == text


def test_the_example_of_the_paper() -> None:
    question, order = "Here is a question: {q}.", "Please act as a math expert and solve it."
    moved = reorder(template(f"{question} {order}"), lambda pieces: [2, 1])
    assert moved.constant_prefix() == order + " Here is a question: "
    assert nodes(moved)[1:] == [Argument("q"), ConstantText("."), Gen("x")]


@pytest.mark.parametrize(
    ("text", "order", "reason"),
    [
        ("{q}\nA.\nB.\n", [1, 2], "no permutation of 1 to 3"),
        ("{q}\nA.\nB.\n", [1, 2, 2], "no permutation"),
        ("{q}\nA.\nB.\n", [2, 3, 1], ""),
        (
            "{q}\nSummarise the text above.\nB.\n",
            [2, 1, 3],
            "piece 2 comes before piece 1, .*'above'",
        ),
        ("{q}\nSummarise the text above.\nB.\n", [3, 1, 2], ""),
        ("Read the following.\n{q}\nB.\n", [2, 1, 3], "one says 'following'"),
        ("Read the following.\n{q}\nB.\n", [1, 3, 2], ""),
        ("{q}\nB.\nAnswer:", [3, 1, 2], "piece 3 is what the model continues"),
        ("{q}\nB.\nSo", [2, 3, 1], "piece 3 is what"),
        ("{q}\nB.\nAnswer:\n", [1, 3, 2], "piece 3 is what the model continues"),
    ],
)
def test_which_orders_are_refused(text: str, order: list[int], reason: str) -> None:
    graph = template(text)
    found = refusal(pieces_of(graph), order)
    assert bool(found) == bool(reason)
    if reason:
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(found)
        assert reorder(graph, lambda pieces: order) is graph
    else:
        assert reorder(graph, lambda pieces: order) is not graph


def test_pieces_stay_in_their_turn_and_the_prefix_grows() -> None:
    def program(s, q):
        s += sgl.system("Be brief.")
        s += sgl.user(q + "\n\nSolve it. Show your work.")
        s += sgl.assistant(sgl.gen("x"))

    graph = traced(program)
    assert refusal(pieces_of(graph), [2, 1, 3, 4]) == "piece 2 leaves its turn"
    moved = reorder(graph, constants_first)
    assert moved.constant_prefix() == "SYSTEM:Be brief.\nUSER:Solve it. Show your work.\n\n"
    text = CompiledProgram(moved, sgl.Mock(["4"])).run("2+2").messages()[1]["content"]
    assert text == "Solve it. Show your work.\n\n2+2"
    assert reorder(graph, lambda pieces: [1, 2, 4, 3]) is not graph
    assert reorder(moved, lambda pieces: [1, 4, 2, 3]) is moved  # the prefix would be shorter


def test_a_model_proposes() -> None:
    graph = template("{q}\nSolve it.\nShow your work.\n")
    mock = sgl.Mock(["2, 3, 1\nTemplate:", "I would keep it"])
    propose = propose_with(mock)
    assert reorder(graph, propose).constant_prefix() == "Solve it.\nShow your work.\n"
    assert reorder(graph, propose) is graph
    prompt = mock.calls[0].prompt.messages[0]["content"]
    assert prompt.endswith("Template:\n1: {q}\n2: Solve it.\n3: Show your work.\nOrder:")
