"""Events of a response: what they add up to is the response, however its text is cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.scripted import pieces
from helpers.scripted_server import Paced, serve_scripted
from helpers.toy_tokenizer import byte_level
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from sglang.semantics.tool_calls.deltas import AnswerWords, Arguments, Begin, Delta, Thought
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.openai.responses.item_writer import ItemWriter

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
NAME = "0" * 32
STATUSES = ("completed", "incomplete")
FRAGMENTS = (
    "Well. ", "\n", " ", "日本語 ",
    '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}"]}}\n</tool_call>',
    '<tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
    "<tool_call>", "</tool_call>", "<tool_", '<tool_call>{"name": "f", "arguments": {"b": "',
)  # fmt: skip


def added_up(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that the events build, each checked against the events that end it."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            assert all(item.get("done") for item in items)
            items.append({**event["item"], "text": ""})
            continue
        if "output_index" not in event:
            continue
        item = items[event["output_index"]]
        assert event["output_index"] == len(items) - 1
        assert "done" not in item
        assert event.get("item_id", item["id"]) == item["id"]
        if kind.endswith(".delta"):
            assert event["delta"]
            item["text"] += event["delta"]
        elif kind.startswith("content_part."):
            assert event["part"]["text"] == item["text"]
        elif kind == "output_item.done":
            whole = event["item"]
            assert whole["id"] == item["id"]
            text = whole["arguments"] if "arguments" in whole else whole["content"][0]["text"]
            assert text == item["text"]
            item["done"] = whole
        else:
            assert event.get("text", event.get("arguments")) == item["text"]
    return [item["done"] for item in items]


texts = st.text(min_size=1, max_size=8)
drawn = st.lists(
    st.one_of(
        texts.map(AnswerWords),
        texts.map(Thought),
        st.tuples(st.sampled_from("fg"), st.lists(texts, max_size=2)),
    ),
    max_size=8,
)


def numbered(parts: list[Any]) -> list[Delta]:
    """Deltas, the calls among them numbered."""
    deltas: list[Delta] = []
    calls = 0
    for part in parts:
        if isinstance(part, tuple):
            deltas += [Begin(calls, part[0]), *(Arguments(calls, text) for text in part[1])]
            calls += 1
        else:
            deltas.append(part)
    return deltas


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(drawn, st.lists(st.integers(0, 50), max_size=6), st.sampled_from(STATUSES))
def test_any_deltas(parts: list[Any], cuts: list[int], status: str) -> None:
    """Valid events, whose sum is the items, which do not depend on how the deltas are cut."""
    found = []
    for way in ([], cuts):
        writer, events = ItemWriter(NAME), []
        for delta in numbered(parts):
            if isinstance(delta, Begin):
                events += writer.write([delta])
                continue
            for piece in pieces(delta.text, way):
                kind: Any = type(delta)
                events += writer.write([kind(*delta_fields(delta), piece)])
                json.dumps(writer.items())
        events += writer.end(status)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        for event in events:
            kind = EVENT.validate_json(json.dumps(event), strict=True).type
            assert kind == event["type"]
        assert added_up(events) == writer.items()
        assert [item["status"] for item in writer.items()[:-1]] == ["completed"] * (
            len(writer.items()) - 1
        )
        assert writer.items()[-1]["status"] == status
        found.append(writer.items())
    assert found[0] == found[1]


def delta_fields(delta: Delta) -> tuple[int, ...]:
    return (delta.call,) if isinstance(delta, Arguments) else ()


# -- the whole way --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Paced:
    return Paced(Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer"))))


@pytest.fixture(scope="module")
def http(model: Paced) -> Iterator[httpx.Client]:
    with serve_scripted(model) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def anonymous(items: list[Any]) -> str:
    """The items without the response's name in their ids."""
    return re.sub(r"[0-9a-f]{32}", NAME, json.dumps(items))


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=5), st.lists(st.integers(0, 300), max_size=8))
def test_any_text(http: httpx.Client, model: Paced, parts: list[str], cuts: list[int]) -> None:
    """A stream, however it is cut, adds up to what is answered without one."""
    model.text, model.cuts = "".join(parts), cuts
    body = {"input": "Hi", "tools": [{"type": "function", "name": "f"}], "store": False}
    reply = http.post("/v1/responses", json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    events = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: ")]
    items = events[-1]["response"]["output"]
    assert added_up(events) == items
    model.cuts = []
    whole = http.post("/v1/responses", json=body).json()
    assert anonymous(items) == anonymous(whole["output"])
    assert events[-1]["response"]["status"] == whole["status"] == "completed"
