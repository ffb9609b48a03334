"""Costs of one request for the others: no body, prompt or parameter holds the server up."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from helpers.http_server import Served, is_error, serve_text
from helpers.toy_tokenizer import byte_level
from sglang.srt.config import Config
from sglang.srt.core.ints import ints
from sglang.srt.core.namespace import Namespace
from sglang.srt.engine import process
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.radix import RadixTree
from sglang.srt.requests import strict_json
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.encoder import Encoder
from sglang.srt.requests.completion.output import Finish, Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime import generated as native
from sglang.srt.runtime.conversations import chat_request, conversation
from sglang.srt.runtime.conversations.chat_request import ChatCall, ChatRequest
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.offload import entries
from sglang.srt.tokenizer import LONG, Tokenizer
from sglang.srt.web.anthropic.messages import routes as messages
from sglang.srt.web.exchange import json_body as body
from sglang.srt.web.native import token_routes
from sglang.srt.web.openai.chat import routes as chat
from sglang.srt.web.openai.reply_fields import ReplyHead
from sglang.srt.web.openai.responses import routes as responses


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        yield server


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.rpartition("data: ")[2] for line in reply.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_escapes_in_an_open_string_take_linear_time() -> None:
    text = "[" + "[]," * 200 + '"' + '\\"' * 500_000
    with pytest.raises(RequestError, match="Unterminated"):
        strict_json.parse(text.encode())  # scanned once per quote, it would be hours


@pytest.mark.parametrize(("head", "tail"), [("[", "]"), ('{"a":', "}")])
def test_depth_is_counted_in_values_not_in_text(head: str, tail: str) -> None:
    most = strict_json.MAX_DEPTH
    strict_json.parse((head * most + "1" + tail * most).encode())
    for depth in (most + 1, 900, 20_000):
        with pytest.raises(RequestError, match=f"nested deeper than {most} levels"):
            strict_json.parse((head * depth + "1" + tail * depth).encode())
    assert strict_json.parse(json.dumps({"a": "[{" * 1000}).encode()) == {"a": "[{" * 1000}


def test_a_long_text_is_tokenized_beside_the_loop(tokenizer: Tokenizer) -> None:
    text = "the quick brown fox jumps " * 20_000
    assert len(text) >= LONG

    async def main() -> int:
        ticks, work = 0, asyncio.ensure_future(asyncio.to_thread(tokenizer.encode, text))
        while not work.done():
            await asyncio.sleep(0.001)
            ticks += 1
        assert len(await work) > 1000
        return ticks

    assert asyncio.run(main()) > 10  # one or two where the library keeps the GIL


@pytest.mark.parametrize("length", [LONG - 1, LONG, LONG + 1])
def test_both_ways_to_tokenize_agree(tokenizer: Tokenizer, length: int) -> None:
    text = ("Grüße, 日本語 <|im_end|> 🙂 " * length)[:length]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert list(tokenizer.encode(text)) == tokenizer._model.encode(text).ids


def longest_wait(served: Served, path: str, body: dict[str, Any]) -> tuple[float, float]:
    """Seconds that a large request took, and the longest that a small one took meanwhile."""
    started = time.monotonic()
    waits = [0.0]
    large = httpx.Client(base_url=served.url, timeout=60)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, large:
        asked = pool.submit(large.post, path, json=body)
        while not asked.done():
            begun = time.monotonic()
            assert served.client.get("/v1/models").status_code == 200
            waits.append(time.monotonic() - begun)
            time.sleep(0.01)
        assert asked.result().status_code == 200
    return time.monotonic() - started, max(waits)


@pytest.mark.slow
def test_many_short_rows_hold_nobody_up(served: Served) -> None:
    rows = [[token % 100 + 5] for token in range(100_000)]
    # A server that is held up is so every time; a machine that is busy is not.
    tries = (longest_wait(served, "/detokenize", {"tokens": rows}) for _ in range(5))
    assert any(longest < took / 3 for took, longest in tries)


def test_a_body_of_many_objects_is_read_beside_the_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    parse = strict_json.parse

    def noted(data: bytes) -> Any:
        seen.append((len(data) > body.SMALL, threading.current_thread() is loop))
        return parse(data)

    loop = served.thread
    monkeypatch.setattr(body, "parse", noted)
    for count in (10, 10_000):
        fields = {"text": "a", "more": [{"a": 1}] * count, "sampling_params": {"max_new_tokens": 1}}
        assert served.client.post("/generate", json=fields).status_code == 200
    assert seen == [(False, True), (True, False)]


def on_the_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> list[bool]:
    """List, for each call of a module's function from now on, whether the loop's thread made it."""
    seen, real, loop = list[bool](), getattr(module, name), served.thread

    def noted(*given: Any) -> Any:
        seen.append(threading.current_thread() is loop)
        return real(*given)

    monkeypatch.setattr(module, name, noted)
    return seen


@pytest.mark.parametrize(
    ("path", "field", "module", "name"),
    [
        ("/v1/chat/completions", "messages", conversation, "_template_input"),
        ("/v1/messages", "messages", messages, "chat_of"),
        ("/v1/responses", "input", responses, "read_items"),
        ("/v1/responses", "input", responses, "messages_of"),
    ],
)
def test_a_long_conversation_is_read_beside_the_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, field: str, module: Any, name: str
) -> None:
    seen = on_the_loop(served, monkeypatch, module, name)
    for count, status in ((1, 200), (LONG + 1, 400)):
        limit = "max_output_tokens" if field == "input" else "max_tokens"
        fields = {field: [{"role": "user", "content": "a"}] * count, limit: 1}
        reply = served.client.post(path, json=fields)
        assert reply.status_code == status, reply.text
    assert seen == [True, False]


def parts(count: int) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "a"}] * count}


def calls(count: int) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {"role": "assistant", "content": "", "tool_calls": [call] * count}


def tool(count: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"a": {"enum": list(range(count))}}}
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def results(count: int) -> list[dict[str, Any]]:
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": parts(count)["content"]}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


USER = {"role": "user", "content": "a"}
NESTED: list[tuple[str, Any, str, Callable[[int], dict[str, Any]]]] = [
    ("/v1/chat/completions", conversation, "_template_input", lambda n: {"messages": [parts(n)]}),
    ("/v1/chat/completions", conversation, "_template_input",
     lambda n: {"messages": [USER, calls(n), USER]}),
    ("/v1/chat/completions", chat_request, "_use",
     lambda n: {"messages": [USER], "tools": [tool(n)], "tool_choice": "none"}),
    ("/apply-template", token_routes, "read_tools",
     lambda n: {"messages": [USER], "tools": [tool(n)]}),
    ("/tokenize", token_routes, "read_tools", lambda n: {"messages": [USER], "tools": [tool(n)]}),
    ("/v1/messages", messages, "chat_of", lambda n: {"messages": [USER, *results(n)]}),
    ("/v1/responses", responses, "read_items", lambda n: {"input": [parts(n)]}),
    ("/api/chat", conversation, "_template_input",
     lambda n: {"model": "sglang-tiny", "messages": [{**USER, "content": "a" * 400 * n}]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "module", "name", "fields"), NESTED)
def test_what_a_message_holds_is_read_beside_the_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, module: Any, name: str,
    fields: Callable[[int], dict[str, Any]],
) -> None:  # fmt: skip
    seen = on_the_loop(served, monkeypatch, module, name)
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    for count in (1, LONG + 1):
        reply = served.client.post(path, json={**fields(count), limit: 1})
        assert reply.status_code in (200, 400), reply.text
    assert seen == [True, False]


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/tokenize", {"prompt": ["a"] * 3000}), ("/detokenize", {"tokens": [[1]] * 3000})],
)
def test_what_a_client_that_left_has_sent_is_not_read_on(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    owner: Any = Encoder if path == "/tokenize" else EngineRuntime
    name = "encode" if path == "/tokenize" else "prompt"
    real, ended, done = getattr(owner, name), threading.Event(), 0

    async def slow(*given: Any) -> Any:
        nonlocal done
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            ended.set()
            raise
        done += 1
        return await real(*given)

    monkeypatch.setattr(owner, name, slow)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{served.client.base_url}{path}", json=fields, timeout=0.5)
    assert ended.wait(60)
    assert done < 3000


@pytest.mark.parametrize("path", ["/apply-template", "/v1/chat/completions"])
def test_variables_of_many_values_are_not_read(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    seen = on_the_loop(served, monkeypatch, conversation, "deeper")
    for count, status in ((10, 200), (1 << 16, 400)):
        variables: dict[str, Any] = {"a": [[]] * count}
        fields = {"messages": [USER], "chat_template_kwargs": variables, "max_tokens": 1}
        reply = served.client.post(path, json=fields)
        assert reply.status_code == status, reply.text
    assert is_error(reply, 400)["param"] == "chat_template_kwargs"
    assert seen == [True]


def test_entries_are_counted_at_any_depth() -> None:
    plain: list[Any] = [1, "a", [], {"a": [1, {"b": None}]}]
    assert [entries(value) for value in plain] == [1, 1, 1, 5]
    assert entries("a" * 1024) == 5
    assert entries(ChatRequest(messages=[])) == 1 + len(ChatRequest.__struct_fields__)
    counted: Any = [[0] * 9] * 9
    assert entries(counted) == 91
    assert entries(counted, 20) == 21
    assert entries([0] * 10**6) == LONG + 1


def test_a_text_that_cannot_fit_is_refused_unread(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: Any) -> None:
        raise AssertionError("it was tokenized")

    before = served.client.golden()
    with monkeypatch.context() as patch:
        patch.setattr(served.tokenizer, "encode", unread)
        patch.setattr(served.tokenizer, "encode_piece", unread)
        text = "x" * (4 * served.tokenizer.longest * 1024 + 10**6)
        for path, more in (
            ("/generate", {"text": text}),
            ("/v1/completions", {"prompt": text}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ):
            error = is_error(served.client.post(path, json=more), 400)
            assert "at least" in error["message"], path
            assert "1024" in error["message"], path
            assert error["code"] == "context_length_exceeded"
    count = served.client.post("/tokenize", json={"prompt": "lazy dog " * 10_000}).json()["count"]
    assert count > 1024  # counting what does not fit is what that route is for
    assert served.client.golden() == before


@pytest.mark.parametrize("field", ["rid", "cache_salt"])
def test_names_are_short(served: Served, field: str) -> None:
    for path, prompt in (("/generate", "text"), ("/v1/completions", "prompt")):
        reply = served.client.post(path, json={prompt: "a", field: "x" * 1025})
        assert is_error(reply, 400)["param"] == field
        reply = served.client.post(path, json={prompt: "a", field: "x" * 1024})
        assert reply.status_code == 200


def test_forgetting_a_namespace_does_not_look_at_the_others() -> None:
    class Roots(dict[str, Any]):
        def _no(self) -> Any:
            raise AssertionError("all roots were visited")

        items = values = __iter__ = _no

    tree = RadixTree(PagePool(8), 1)
    tree._roots = Roots()  # type: ignore[assignment]
    for name in "abc":
        node, _ = tree.lock(ints([1, 2]), 0, Namespace(name))
        tree.unlock(node)
        assert tree.root(Namespace(name)) is None
    assert not tree._namespaces


def test_a_stream_writes_each_log_probability_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0
    triples = native.LogprobWriter._triples

    def counted(self: Any, pairs: Any) -> Any:
        nonlocal written
        found = triples(self, pairs)
        written += len(found)
        return found

    monkeypatch.setattr(native.LogprobWriter, "_triples", counted)
    request = {
        "text": "the lazy dog", "return_logprob": True, "logprob_start_len": 0,
        "top_logprobs_num": 2, "token_ids_logprob": [1],
        "sampling_params": {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True},
    }  # fmt: skip
    whole = served.client.post("/generate", json=request).json()["meta_info"]
    alone, written = written, 0
    chunks = events(served.client.post("/generate", json={**request, "stream": True}))
    assert alone < written <= 2 * alone  # the prompt's part is in the first and in the last
    names = [name for name in whole if "logprobs" in name]
    assert len(names) == 6
    assert all(chunks[-1]["meta_info"][name] == whole[name] for name in names)
    for chunk in chunks[1:-1]:
        found = chunk["meta_info"]
        count = found["completion_tokens"]
        assert found["output_token_logprobs"] == whole["output_token_logprobs"][:count]
        assert "input_token_logprobs" not in found


def test_a_choice_that_ends_while_a_chunk_is_sent_ends_once() -> None:
    output = Output(0, text="a", tokens=[1], released=1)

    class Racing:
        config = Config.of()
        runtime = None

        async def run(self, requests: list[CompletionRequest]) -> AsyncIterator[tuple[int, Output]]:
            yield 0, output
            yield 0, output  # the item that says so; the first was taken before

    async def main() -> list[dict[str, Any]]:
        found = []
        talk = ChatCall(CompletionRequest(ints([1])), None)
        stream = chat._events(
            Racing(),  # type: ignore[arg-type]
            ChatRequest(messages=[]),
            ReplyHead("id", "model", 0),
            talk,
        )
        async for chunk in stream:
            data = chunk if isinstance(chunk, dict) else json.loads(chunk.removeprefix(b"data: "))
            found += data["choices"]
            output.text, output.finish = "ab", Finish("length")
        return found

    choices = asyncio.run(main())
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
    assert "".join(c["delta"].get("content", "") for c in choices) == "ab"


def test_every_reader_of_a_lost_engine_gets_an_error_of_its_own() -> None:
    async def main() -> None:
        client = Client(SimpleNamespace(), lambda verbs: None)  # type: ignore[arg-type]
        inboxes = [client.submit(number, []) for number in range(3)]
        client.fail(EngineLost("it is gone"))
        seen = []
        for inbox in inboxes:
            with pytest.raises(EngineLost, match="it is gone") as caught:
                await inbox.__anext__()
            seen.append(caught.value)
        with pytest.raises(EngineLost, match="it is gone") as caught:
            client.send()
        assert len({id(error) for error in [*seen, caught.value, client.lost]}) == 5
        assert client.lost is not None
        assert client.lost.__traceback__ is None

    asyncio.run(main())


def test_an_engine_that_cannot_be_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []

    def refuse(arguments: list[str], **_: Any) -> None:
        seen.extend(path.read_bytes() for path in Path(arguments[3]).iterdir())
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    keys = {"api_key": "a-secret-key", "admin_api_key": "a-secret-key-too"}
    config = Config.of(**keys, ssl_keyfile_password="a-secret-password")
    with pytest.raises(OSError, match="no more processes"):
        asyncio.run(process.spawn(config, [b"a"]))
    assert len(seen) == 2, "config, and the memory of the loop's progress"
    assert not any(b"a-secret" in data for data in seen)
    assert not list(tmp_path.iterdir())


def test_a_silent_engine_is_not_called_dead(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gauges() -> dict[str, float]:
        rows = served.client.get("/metrics").text.splitlines()
        lines = [row for row in rows if not row.startswith(("#", "sglang:http_"))]
        pairs = (line.rsplit(" ", 1) for line in lines)
        return {name.partition("{")[0]: float(value) for name, value in pairs}

    async def silent(op: str, seconds: float = 5.0, limit: int = 0) -> None:
        raise asyncio.TimeoutError

    served.client.golden()
    before = gauges()
    with monkeypatch.context() as patch:
        patch.setattr(served.state.runtime.completion, "control_each", silent)
        for method, path in (("GET", "/get_server_info"), ("POST", "/flush_cache")):
            error = is_error(served.client.request(method, path), 503)
            assert "busy" in error["message"]
            assert "stopped" not in error["message"]
        assert gauges() == before


def test_the_throughput_gauge_is_never_negative(served: Served) -> None:
    metrics = served.state.metrics
    metrics.engine.read({"0": {"generated_tokens": 1000.0}})
    metrics.engine._last = (metrics.engine._last[0] - 10.0, 1000.0)
    metrics.engine.read({})
    assert metrics.engine._rate._value.get() == 0.0
