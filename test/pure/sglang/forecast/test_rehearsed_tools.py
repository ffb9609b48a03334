"""Explanations and plans of programs with tools: no tool runs."""

from __future__ import annotations

import pytest
import sglang as sgl


def search(text: str) -> str:
    raise AssertionError("a forecast runs no tool")


@sgl.function
def program(s, question):
    s += question + sgl.gen("query", max_tokens=4)
    s += "Found: " + sgl.tool("hits", search, of="query")
    s += sgl.gen("answer", max_tokens=8)


def test_an_explanation_shows_the_tool_and_its_unknown_text() -> None:
    explained = program.explain("Q: ", backend=sgl.Mock())
    assert [request.title for request in explained.requests] == [
        "gen query", "tool hits", "gen answer",
    ]  # fmt: skip
    assert explained.requests[1].body == {"tool": "search", "of": ["⟨query⟩"]}
    assert explained.requests[2].body["text"] == "Q: ⟨query⟩Found: ⟨hits⟩"


def test_an_answer_stands_for_the_tools_text() -> None:
    explained = program.explain("Q: ", backend=sgl.Mock(), answers={"hits": "two"})
    assert explained.requests[2].body["text"].endswith("Found: two")
    with pytest.raises(sgl.SglangError, match="no call asks for 'other'"):
        program.explain("Q: ", backend=sgl.Mock(), answers={"other": "x"})


def test_a_plan_needs_the_length_of_a_tools_text() -> None:
    with pytest.raises(sgl.SglangError, match="the text 'hits' of tool 'search' may have any"):
        program.plan(("Q: ",), backend=sgl.Mock())
    short, long = (
        program.plan(("Q: ",), backend=sgl.Mock(), lengths={"query": 4, "hits": tokens})
        for tokens in (10, 30)
    )
    assert long.prompt_tokens - short.prompt_tokens == 20
    assert len(short.calls) == 2
    plan = program.plan(("Q: ",), backend=sgl.Mock(), answers={"query": "x", "hits": " a b"})
    assert plan.prompt_tokens < short.prompt_tokens
