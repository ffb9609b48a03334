"""Tools in graphs: names in the graph, functions beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from sglang.compiler import CompiledProgram, load
from sglang.ir.graph import Graph
from sglang.ir.graph_passes import fold, prune
from sglang.ir.nodes import RunTool


def calc(text: str) -> int:
    left, right = text.split("*")
    return int(left) * int(right)


async def shout(text: str) -> str:
    await asyncio.sleep(0)
    return text.upper()


def stamp() -> str:
    return "now"


@sgl.function
def program(s, question):
    s += question + sgl.gen("call", stop=")")
    s += "=" + sgl.tool("result", calc, of="call", timeout=9, expected_seconds=0.5)
    forks = s.fork(2)
    forks += sgl.tool("loud", shout, of=sgl.gen("word")) + sgl.tool("at", stamp)
    forks.join()
    s += sgl.tool("result", shout, of="loud") + sgl.gen("end")
    return s["result"], s["at"]


TOOLS: dict[str, Callable[..., Any]] = {"calc": calc, "shout": shout, "stamp": stamp}


def backend() -> sgl.Mock:
    def reply(prompt, params):
        return "." if prompt.text.endswith("HI") else "hi" if "=" in prompt.text else "3*4)"

    return sgl.Mock(reply)


def test_a_compiled_program_runs_its_tools() -> None:
    plain = program.run("Q ", backend=backend())
    assert plain.text() == "Q 3*4=12HI."
    compiled = program.compile()
    assert compiled.tools == TOOLS
    for state in (
        compiled.run("Q ", backend=backend()),
        compiled.run("Q ", backend=backend(), use_thread=False),
        asyncio.run(compiled.arun("Q ", backend=backend())),
        *compiled.run_batch([{"question": "Q "}], backend=backend()),
    ):
        assert state.text() == plain.text()
        assert state.ret_value == list(plain.ret_value) or state.ret_value == plain.ret_value


def test_a_graph_holds_names_and_references() -> None:
    nodes = [step.node for step in program.trace().steps().values()]
    tools = [node for node in nodes if isinstance(node, RunTool)]
    assert {tool.tool for tool in tools} == set(TOOLS)
    assert (tools[0].timeout, tools[0].expected_seconds) == (9, 0.5)
    text = str(program.trace())
    assert "RunTool 'result' 'calc' (Variable(source=1, name='call'),) 9 0.5" in text


def test_a_saved_program_is_given_its_tools(tmp_path: Path) -> None:
    compiled, path = program.compile(), tmp_path / "graph.json"
    compiled.save(path)
    loaded = load(path, tools=TOOLS)
    assert loaded.graph == compiled.graph == Graph.from_json(compiled.graph.to_json())
    assert loaded.run("Q ", backend=backend()).text() == "Q 3*4=12HI."
    with pytest.raises(ValueError, match=r"step \d+ \(RunTool\) at .* runs tool 'calc', which is"):
        load(path, tools={"shout": shout, "stamp": stamp})
    with pytest.raises(ValueError, match="is not given: tools="):
        load(path)


def test_two_functions_of_one_name_are_refused() -> None:
    @sgl.function
    def twins(s):
        s += sgl.tool("a", lambda: 1) + sgl.tool("b", lambda: 2)

    assert twins.run(backend=backend()).text() == "12"
    with pytest.raises(sgl.TraceError, match="two tools are functions named '<lambda>'"):
        twins.compile()


class Shop:
    def price(self) -> str:
        return "5"


def test_a_bound_method_may_be_used_twice() -> None:
    shop = Shop()

    @sgl.function
    def twice(s):
        s += sgl.tool("a", shop.price) + sgl.tool("b", shop.price)

    assert twice.compile().run(backend=backend()).text() == "55"


def test_values_that_only_a_run_knows_are_stored_first() -> None:
    @sgl.function
    def given(s, question):
        s["q"] = question
        s += sgl.tool("loud", shout, of="q")

    @sgl.function
    def direct(s, question):
        s += sgl.tool("loud", shout, of=question)

    assert given.compile().run("hey", backend=backend()).text() == "HEY"
    assert given.run("hey", backend=backend()).text() == "HEY"
    with pytest.raises(TypeError, match="of of tool 'shout' is a value; store it"):
        direct.compile()
    with pytest.raises(sgl.ProgramError, match="is given variable 'hey', which this state"):
        direct.run("hey", backend=backend())


def test_a_compiled_program_becomes_part_of_another() -> None:
    inner = program.compile()

    @sgl.function
    def outer(s):
        inner(s, "Q ")
        return inner.run("P ")["result"]

    compiled = outer.compile()
    assert compiled.tools == TOOLS
    state = compiled.run(backend=backend())
    assert state.text() == "Q 3*4=12HI."
    assert state.ret_value == "HI"


def test_passes_keep_the_tools_that_are_wanted() -> None:
    graph = program.trace()
    left = prune(graph, ["call"])
    assert len(left.steps()) < len(graph.steps())
    folded = CompiledProgram(fold(graph, {"question": "Q "}), tools=TOOLS)
    assert folded.run(backend=backend()).text() == "Q 3*4=12HI."

    @sgl.function
    def chain(s):
        s += "3*4" + sgl.tool("unused", stamp) + sgl.gen("call", stop=")")
        s += sgl.tool("result", calc, of="call") + sgl.tool("last", stamp)

    kept = [s.node.tool for s in prune(chain.trace(), ["result"]).steps().values()
            if isinstance(s.node, RunTool)]  # fmt: skip
    assert kept == ["stamp", "calc"], "text before a call is wanted, text behind it is not"


def test_a_tool_inside_reasoning_is_traced() -> None:
    @sgl.function
    def thinking(s):
        s += sgl.separate_reasoning(sgl.gen("a") + sgl.tool("t", stamp), "deepseek-r1")

    mock = sgl.Mock(lambda prompt, params: "<think>hm</think>yes")
    assert thinking.run(backend=mock).text() == thinking.compile().run(backend=mock).text()


def test_the_constant_prefix_ends_before_a_tool() -> None:
    ran = []

    @sgl.function
    def prefixed(s):
        s += "Begin. " + sgl.tool("t", lambda: ran.append(1)) + " End."

    assert prefixed.cache(backend=backend()) == "Begin. "
    assert prefixed.trace().constant_prefix() == "Begin. "
    assert ran == []
