"""Gens with tools on the embedded model, in process and over HTTP: its own format, and calls that
the engine holds it to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import sglang as sgl
from pydantic import BaseModel

pytest.importorskip("torch")


def calc(expression: str) -> int:
    """Value of a product."""
    left, right = expression.split("*")
    return int(left) * int(right)


def paint(colour: Literal["red", "blue"], coats: Literal[1, 2]) -> str:
    return f"{coats} coats of {colour}"


class Mood(BaseModel):
    mood: Literal["good", "bad"]


@sgl.function
def ask(s: Any, question: str, tools: Any, choice: Any = None) -> str:
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("x", max_tokens=48, tools=tools, tool_choice=choice))
    return str(s["x"])


@pytest.fixture(scope="module", params=["engine", "http"])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    settings: dict[str, Any] = {"max_total_tokens": 8192, "log_level": "warning", "device": "cpu"}
    started: Any = sgl.Engine(**settings) if request.param == "engine" else sgl.Runtime(**settings)
    yield started
    started.shutdown()


def test_the_model_calls_reads_and_answers(backend: Any) -> None:
    state = ask.run("What is 417 * 23?", [calc], backend=backend, temperature=0)
    (call,) = state.value("x_calls")
    assert call.value == 417 * 23
    assert state.ret_value.strip() == str(417 * 23)
    second = state._executor.stream.segments[-1].meta
    assert second["cached_tokens"] > 0.5 * second["prompt_tokens"]  # the first turn's


def test_a_batch_and_an_event_loop(backend: Any) -> None:
    items = [{"question": f"What is {n} * 23?", "tools": [calc]} for n in (12, 31, 44)]
    states = ask.run_batch(items, backend=backend, temperature=0)
    assert [s.value("x_calls")[0].value for s in states] == [12 * 23, 31 * 23, 44 * 23]
    state = asyncio.run(ask.arun("What is 31 * 23?", [calc], backend=backend, temperature=0))
    assert state.value("x_calls")[0].value == 31 * 23


def test_calls_are_held_to_names_and_arguments(backend: Any) -> None:
    """The model knows nothing of these: it may write nothing else, at any temperature."""
    for seed in range(3):
        state = ask.run("Hi", [paint, Mood], paint, backend=backend, temperature=1.5, seed=seed)
        first = state["x_calls"][0]
        assert first["name"] == "paint"
        assert first["error"] == ""
        assert set(first["arguments"]) == {"colour", "coats"}
    left = ask.run("Hi", [Mood], "required", backend=backend, temperature=1.5, seed=1)
    assert {call.value.mood for call in left.value("x_calls")} <= {"good", "bad"}


def test_the_text_streams(backend: Any) -> None:
    state = ask.run("What is 12 * 12?", [calc], backend=backend, temperature=0, stream=True)
    assert "".join(state.text_iter()) == state.text()
    assert "<result>144</result>" in state.text()
