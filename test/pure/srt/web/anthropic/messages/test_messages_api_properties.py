"""/v1/messages by properties: what blocks say is what deltas say, and no body breaks the server."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from helpers.scripted import Scripted, pieces
from helpers.toy_tokenizer import byte_level
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from sglang.semantics.tool_calls.deltas import AnswerWords, Arguments, Begin, Delta, Thought
from sglang.srt.config import Config
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.anthropic.messages.messages_reply import Blocks, content_of
from sglang.srt.web.app import make_app
from sglang.srt.web.server_state import ServerState

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
START = {
    "type": "message_start",
    "message": {"id": "msg", "type": "message", "role": "assistant", "model": "m", "content": [],
                "usage": {"input_tokens": 1, "output_tokens": 0}},
}  # fmt: skip
TEXT = st.text(min_size=1, max_size=12)
OBJECTS = st.dictionaries(st.text(max_size=4), st.none() | st.integers() | st.text(), max_size=3)
PARTS = st.lists(
    st.tuples(st.just("thinking"), TEXT)
    | st.tuples(st.just("text"), TEXT)
    | st.tuples(st.just("tool_use"), OBJECTS.map(json.dumps)),
    max_size=5,
)
CUTS = st.lists(st.integers(0, 1000), max_size=6)


def deltas_of(parts: Sequence[tuple[str, str]], cuts: Sequence[int]) -> list[Delta]:
    """Deltas that a reader makes of the parts when each arrives in pieces."""
    found: list[Delta] = []
    calls = 0
    for kind, text in parts:
        if kind == "tool_use":
            found.append(Begin(calls, "f"))
            found += [Arguments(calls, piece) for piece in pieces(text, cuts)]
            calls += 1
        else:
            make = Thought if kind == "thinking" else AnswerWords
            found += [make(piece) for piece in pieces(text, cuts)]
    return found


def events_of(deltas: Sequence[Delta], thoughts: bool = True, many: bool = True) -> list[Any]:
    blocks = Blocks(thoughts, many)
    return [*(event for delta in deltas for event in blocks.add([delta])), *blocks.end()]


def plain(blocks: Sequence[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Kind and content of blocks; neighbours of one kind of text are one."""
    found: list[tuple[str, Any]] = []
    for block in blocks:
        kind = block["type"]
        value = block[{"tool_use": "input"}.get(kind, kind)]
        if found and kind != "tool_use" and found[-1][0] == kind:
            found[-1] = kind, found[-1][1] + value
        else:
            found.append((kind, value))
    return found


@given(PARTS, CUTS)
@settings(max_examples=150)
def test_the_pieces_do_not_matter(parts: list[tuple[str, str]], cuts: list[int]) -> None:
    """The reply's own reading of its events, the client's, and the parts themselves agree."""
    events = events_of(deltas_of(parts, cuts))
    snapshot, buffers = None, dict[int, bytes]()
    for event in [START, *events]:
        typed = EVENTS.validate_python(event)
        snapshot = accumulate_event(event=typed, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    theirs = [block.to_dict() for block in snapshot.content]
    ours = content_of(events, False)
    assert theirs == ours
    wanted = [
        {"type": kind, kind: text} if kind != "tool_use" else
        {"type": kind, "input": json.loads(text)} for kind, text in parts
    ]  # fmt: skip
    assert plain(ours) == plain(wanted)
    again = content_of(events_of(deltas_of(parts, [])), False)
    assert plain(again) == plain(ours)
    signatures = [block.get("signature") for block in ours]
    assert [block.get("signature") for block in again] == signatures
    assert all(signatures[i] for i, block in enumerate(ours) if block["type"] == "thinking")


@given(PARTS, CUTS)
def test_blocks_are_told_one_after_the_other(parts: list[Any], cuts: list[int]) -> None:
    current, is_open = -1, False
    for event in events_of(deltas_of(parts, cuts)):
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open
            current, is_open = current + 1, True
        assert is_open
        assert event["index"] == current
        is_open = kind != "content_block_stop"
    assert not is_open


@given(PARTS, CUTS)
def test_what_is_not_to_be_told_is_left_out(parts: list[Any], cuts: list[int]) -> None:
    deltas = deltas_of(parts, cuts)
    spoken = deltas_of([part for part in parts if part[0] != "thinking"], [])
    hidden = content_of(events_of(deltas, thoughts=False), False)
    assert plain(hidden) == plain(content_of(events_of(spoken), False))
    kinds = [block["type"] for block in content_of(events_of(deltas, many=False), False)]
    assert kinds.count("tool_use") <= 1
    assert "tool_use" not in kinds[:-1]


@pytest.mark.parametrize(
    ("text", "cut", "value"),
    [
        ("", False, {}),
        ("", True, {}),
        ('{"a": [1, {"b": "c', True, {"a": [1, {}]}),
        ('{"a": 1, "b": tru', True, {"a": 1}),
        ('{"a": 1, "b": tru', False, {"INVALID_JSON": '{"a": 1, "b": tru'}),
        ('{"a": 1 2}', False, {"INVALID_JSON": '{"a": 1 2}'}),
        ('{"a": 99999999999999999999}', False, {"a": 99999999999999999999}),
        ("[1]", True, {"INVALID_JSON": "[1]"}),
    ],
)
def test_arguments_that_are_cut_or_wrong(text: str, cut: bool, value: dict[str, Any]) -> None:
    deltas: list[Any] = [Begin(0, "f"), *([Arguments(0, text)] if text else [])]
    (block,) = content_of(events_of(deltas), cut)
    assert block["input"] == value


# -- bodies ---------------------------------------------------------------------------------------

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 1.5, 10**30, "", "x", "\ue000", [], [[]], {}, {"type": "x"}]
)
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "S"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "is_error": False,
             "content": [{"type": "text", "text": "r"}]}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}, "strict": True}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low"},
    "stop_sequences": ["END"],
    "temperature": 1.0, "top_p": 0.9, "top_k": 5,
    "thread": None, "rid": "r", "n": 1, "stop": None, "chat_template_kwargs": {"a": 1},
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in items:
        found.append((*path, key))
        if isinstance(inner, (dict, list)):
            found += places(inner, (*path, key))
    return found


@pytest.mark.slow
def test_no_body_breaks_the_server(tmp_path: Path) -> None:
    """Junk in every field of a body, and every field left out: an answer, or a 400."""
    completion: Any = Scripted(Tokenizer(byte_level(tmp_path)))
    app = make_app(ServerState(Config.of(), completion))
    statuses = set()

    async def post(body: dict[str, Any]) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [
                await client.post(path, json=body)
                for path in ("/v1/messages", "/v1/messages/count_tokens")
            ]

    @given(st.sampled_from(places(BODY)), JUNK, st.booleans())
    @settings(max_examples=150)
    def check(path: tuple[Any, ...], junk: Any, leave_out: bool) -> None:
        body = copy.deepcopy(BODY)
        inner: Any = body
        for key in path[:-1]:
            inner = inner[key]
        if leave_out:
            del inner[path[-1]]
        else:
            inner[path[-1]] = junk
        for reply in asyncio.run(post(body)):
            assert reply.status_code in (200, 400), (path, junk, reply.text)
            statuses.add(reply.status_code)
            if reply.status_code == 400:
                assert ErrorResponse.model_validate(reply.json()).error.message

    check()
    assert statuses == {200, 400}
