"""Steps of programs over scripted calls: values, media, tools, joins, what is computed ahead."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from helpers.program_clients import Clients, clients, until
from helpers.program_graphs import (
    branch,
    fork,
    gen,
    graph,
    join,
    map_reduce,
    stream,
    text,
    transform,
    value,
)
from helpers.scripted_calls import reply
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.programs.stream_text import StreamText
from sglang.srt.runtime.toolbox.tool_processes import ToolResult

APPEND = "concate_and_append"


class Tools:
    """A toolbox of one function."""

    parameters: ClassVar = {"properties": {"expression": {}}, "required": ["expression"]}
    tools: ClassVar = {"calc": {"function": {"parameters": parameters}}}

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.failed = False

    async def call(self, name: str, arguments: str) -> ToolResult:
        self.calls.append((name, arguments))
        return ToolResult("Error: no." if self.failed else "42", self.failed)


def test_inputs_and_tools_of_the_client_are_set() -> None:
    async def use(c: Clients) -> None:
        tool = {"op": "tool", "name": "t", "tool": "calc", "of": {"step": 0, "name": "x"}}
        session, run = await c.submit(graph(stream(0, gen("x"), tool, gen("y"))))
        await until(lambda: b"waiting" in b"".join(map(bytes, run.log._events)))
        id = run.variables[1, "t"].id
        with pytest.raises(RequestError, match="must be a text"):
            c.set(session, id, 4)
        with pytest.raises(RequestError, match="is made by step 0"):
            c.set(session, run.variables[0, "x"].id, "no")
        c.set(session, id, "42")
        c.set(session, id, "42")
        with pytest.raises(RequestError, match="has been set"):
            c.set(session, id, "43")
        await c.get(session, run, 2, "y")
        assert c.calls.prompts[1] == f"{reply('')}42"
        waiting = [e for e in await c.events(session, run) if e["event"] == "waiting"]
        assert waiting == [{"event": "waiting", "step": 1, "tool": "calc", "of": reply(""),
                            "semantic_var_id": id}]  # fmt: skip

    clients(use)


def test_a_tool_that_is_late_fails_its_step() -> None:
    async def use(c: Clients) -> None:
        tool = {"op": "tool", "name": "t", "tool": "calc", "timeout": 0.01}
        session, run = await c.submit(graph(stream(0, tool)))
        with pytest.raises(RequestError, match="has not answered in") as caught:
            await c.get(session, run, 0, "t")
        assert caught.value.code == "expired"

    clients(use)


def test_a_failed_transform_is_an_error_of_its_step() -> None:
    async def use(c: Clients) -> None:
        body = graph(stream(0, gen("x"), transform("y", 0, "x", {"op": "number"})))
        session, run = await c.submit(body)
        with pytest.raises(RequestError, match=r"step 1 \(transform 'y'\): transform 'number'"):
            await c.get(session, run, 1, "y")

    clients(use)


def test_known_text_is_computed_while_a_value_grows() -> None:
    async def use(c: Clients) -> None:
        long = "read this " * 8
        body = graph(
            stream(0, text(long), value(1000, "x"), gen("y")),
            stream(1, gen("x"), begin={"call": "g"}),
        )
        session, run = await c.submit(body)
        await c.get(session, run, 2, "y")
        assert c.calls.ahead[0] == long
        assert all((long + reply("")).startswith(each) for each in c.calls.ahead)
        assert len(c.calls.ahead) <= 1 + len(reply("")) // 4

    clients(use, ahead=4)


@pytest.mark.parametrize("salt", [
    gen("y", cache_salt="s"), gen("y", extra_key="k"), gen("y", lora_path="a"),
    {"op": "choose", "name": "y", "options": ["a"], "method": "greedy_token_selection",
     "adapter": {"lora_path": "a"}},
])  # fmt: skip
def test_nothing_is_computed_ahead_of_salted_calls(salt: dict[str, Any]) -> None:
    """A prompt that is computed ahead is cached for all requests."""

    async def use(c: Clients) -> None:
        body = graph(
            stream(0, text("long " * 20), value(1000, "x"), salt),
            stream(1, gen("x"), begin={"call": "g"}),
        )
        c.calls.held = asyncio.Event()
        _, run = await c.submit(body)
        await until(lambda: c.calls.open == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not c.calls.ahead
        run.cancel()
        await until(lambda: run.over)

    clients(use, ahead=4)


def test_nothing_is_computed_ahead_where_that_is_off() -> None:
    async def use(c: Clients) -> None:
        _, run = await c.submit(map_reduce(3))
        await until(lambda: run.over)
        assert not c.calls.ahead

    clients(use, ahead=0)


def test_a_value_that_refers_to_itself_many_times_is_refused() -> None:
    """2^30 entries by 30 steps: refused by its size before it is made."""

    async def use(c: Clients) -> None:
        steps: list[dict[str, Any]] = [{"op": "set", "name": "s", "value": ["aaaa"]}]
        for i in range(30):
            ref = {"step": i, "name": "s"}
            steps.append({"op": "set", "name": "s", "value": [ref, ref]})
        session, run = await c.submit(graph(stream(0, *steps)))
        with pytest.raises(RequestError, match="the list has more than"):
            await c.get(session, run, 30, "s")

    clients(use)


def test_a_join_appends_branches_side_by_side() -> None:
    async def use(c: Clients) -> None:
        body = graph(
            stream(
                0, text("p "), fork(1, 2), join(1001, 2000, mode="concate_and_append"), gen("y")
            ),
            branch(1, 1, 0, text("a"), gen("x")),
            branch(2, 1, 1, text("b")),
        )
        session, run = await c.submit(body)
        await c.get(session, run, 3, "y")
        assert c.calls.prompts[-1] == str(["p ", [f"a{reply('p a')}", "b"], ""])

    clients(use)


def test_images_go_with_the_prompt_at_their_markers() -> None:
    async def use(c: Clients) -> None:
        body = graph(
            stream(0, text("See "),
                   {"op": "media", "kind": "image", "source": {"url": "data:a"}, "marker": "<i>"},
                   {"op": "media", "kind": "video", "source": {"argument": "v"}, "marker": "<v>",
                    "num_frames": 4}, gen("x")),
            v="data:b",
        )  # fmt: skip
        session, run = await c.submit(body)
        await c.get(session, run, 3, "x")
        [sent] = c.calls.bodies
        assert sent["text"] == "See <i><v>"
        assert sent["image_data"] == ["data:a"]
        assert sent["video_data"] == [{"url": "data:b", "num_frames": 4}]

    clients(use)


def test_a_server_tool_answers_and_its_failure_is_the_steps() -> None:
    async def use(c: Clients) -> None:
        toolbox = Tools()
        c.service.tools = replace(c.service.tools, toolbox=lambda: toolbox)  # type: ignore[arg-type,return-value]
        tool = {"op": "tool", "name": "t", "tool": "calc", "where": "server",
                "of": {"argument": "e"}}  # fmt: skip
        body = graph(stream(0, text("= "), tool, gen("y")), e="6*7")
        session, run = await c.submit(body)
        await c.get(session, run, 2, "y")
        assert toolbox.calls == [("calc", '{"expression": "6*7"}')]
        assert c.calls.prompts == ["= 42"]
        toolbox.failed = True
        session, run = await c.submit(body)
        with pytest.raises(RequestError, match=r"step 1 \(tool 't'\): tool 'calc': Error"):
            await c.get(session, run, 2, "y")
        body["streams"][0]["steps"][1]["tool"] = "other"
        with pytest.raises(RequestError, match="the toolbox has calc"):
            await c.submit(body)

    clients(use)


def test_gens_without_settings_are_taken() -> None:
    async def use(c: Clients) -> None:
        steps = [{"op": "gen", "body": {"sampling_params": None}}, {"op": "gen", "body": {}}]
        _, run = await c.submit(graph(stream(0, text("a"), *steps)))
        await until(lambda: run.over)
        assert set(run.states.values()) == {"done"}

    clients(use)


def test_a_join_keeps_the_own_text_of_a_branch_and_not_for_long() -> None:
    parent = StreamText()
    parent.append("p" * 1000)
    own = parent.copy()
    own.append("own")
    kept = own.snapshot()
    assert (kept.text, kept.length, kept.origin) == ("own", 3, (0, 0, 0))

    async def use(c: Clients) -> None:
        _, run = await c.submit(map_reduce(3))
        assert len(run.ends) == 3
        await until(lambda: run.over)
        assert not run.ends

    clients(use)


def test_streams_share_the_text_before_them() -> None:
    long = "p" * 1_000_000
    parent = StreamText()
    parent.append(long)
    parent.append("q")
    tracemalloc.start()
    try:
        branches = [parent.copy() for _ in range(40)]
        for branch in branches:
            branch.append("b")
            assert branch.text.endswith("pqb")
            branch.append(long)
        ends = [branch.snapshot() for branch in branches for _ in range(4)]
        assert {len(end.text) for end in ends} == {end.length for end in ends} == {1_000_001}
        assert ends[0].copy().snapshot().text == ""
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 1_000_000


def test_texts_that_steps_make_are_held() -> None:
    """Appended transforms and joins count as values do: nothing else bounds them all."""

    async def use(c: Clients) -> None:
        x = {"step": 0, "name": "x"}
        made = {"op": "value", "of": x, "transform": [{"op": "strip"}]}
        steps: list[dict[str, Any]] = [
            {"op": "set", "name": "x", "value": " " + "x" * 400},
            *[made] * 9,
        ]
        session, run = await c.submit(graph(stream(0, *steps)))
        await until(lambda: run.over)
        assert session.size > 10 * 400

    clients(use)
