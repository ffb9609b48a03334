"""Replies read by the OpenAI backend: text, meta_info, streams and every way to fail."""

from __future__ import annotations

import asyncio
import gc
import re
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sglang as sgl
from helpers.counted import reaches
from helpers.fake_openai import Broken, FakeOpenAI, Late, Refuse, by_prompt
from helpers.threads import running_threads
from hypothesis import given
from hypothesis import strategies as st
from sglang import errors
from sglang.backend.base import Completion, Prompt
from sglang.backend.openai.api_exchange import Exchange, OpenAIService, without
from sglang.backend.openai.apis import ChatExchange, ResponsesExchange, TextExchange
from sglang.backend.openai.openai_backend import OpenAI
from sglang.backend.openai.strict_schema import unwrapped
from sglang.backend.service_backend import BadReply, Slots
from sglang.ir.params import DEFAULTS, GenParams
from sglang.ir.stops import held

APIS = ("chat", "completions", "responses")
PROMPT = Prompt("Tell me", ({"role": "user", "content": "Tell me"},))


@contextmanager
def model(service: FakeOpenAI, **options: Any) -> Iterator[OpenAI]:
    options = {"max_retries": 0, "base_url": service.url, "model_name": "m", **options}
    backend = OpenAI(**options)
    yield backend
    backend.shutdown()


def asked(backend: OpenAI, way: str, prompt: Prompt = PROMPT, **params: Any) -> list[Completion]:
    """The completions, or what a stream showed, in one of four ways."""
    chosen = GenParams(**params).over(DEFAULTS)

    async def streamed() -> list[Completion]:
        return [completion async for completion in backend.astream(prompt, chosen)]

    if way == "complete":
        return backend.complete(prompt, chosen)
    if way == "acomplete":
        return asyncio.run(backend.acomplete(prompt, chosen))
    return asyncio.run(streamed()) if way == "astream" else list(backend.stream(prompt, chosen))


WAYS = ("complete", "acomplete", "stream", "astream")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("way", WAYS)
def test_text_and_meta_info(api: str, way: str) -> None:
    with FakeOpenAI("one two three four") as service, model(service, api=api) as backend:
        *shown, last = asked(backend, way, max_new_tokens=3, return_logprob=True)
        assert last.text == "one two three"
        assert last.meta.pop("id")
        assert last.meta == {
            "finish_reason": {"type": "length", "length": 3},
            "request_id": "req_1",
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "cached_tokens": 1,
            "output_token_logprobs": [[-1.0, t, t] for t in ("one", " two", " three")],
        }
        if "stream" in way:
            assert [c.text for c in shown] == ["one", "one two", "one two three"]
            assert all(c.meta == {"finish_reason": None} for c in shown)
        usage = backend.token_usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (2, 3)
        usage.reset()
        assert (usage.prompt_tokens, usage.completion_tokens) == (0, 0)


def test_several_completions_carry_the_usage_once() -> None:
    with FakeOpenAI("a b") as service, model(service) as backend:
        first, second = asked(backend, "complete", n=2, top_logprobs_num=1)
        assert backend.token_usage.completion_tokens == 4
    assert (first.text, second.text) == ("a b", "a b")
    assert first.meta["completion_tokens"] == 4
    assert "completion_tokens" not in second.meta
    assert first.meta["output_top_logprobs"] == [[[-1.0, "a", "a"]], [[-1.0, " b", " b"]]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "api"), [("m", "responses"), ("o3", "chat")])
def test_stops_that_the_api_lacks_are_cut_here(name: str, api: str, way: str) -> None:
    with FakeOpenAI("x END y z") as service, model(service, model_name=name, api=api) as backend:
        *shown, last = asked(backend, way, stop=[" END y", "z"])
    assert last.text == "x"
    assert last.meta["finish_reason"] == {"type": "stop", "matched": " END y"}
    assert {c.text for c in shown} <= {"x"}


def test_what_a_server_says_it_stopped_at_is_kept() -> None:
    def reply(body: Any) -> dict[str, Any]:
        return {"choices": [{"text": "a", "finish_reason": "stop", "stop_reason": "END"}]}

    with FakeOpenAI() as service, model(service, api="completions") as backend:
        service._whole = lambda path, body, text: reply(body)  # type: ignore[method-assign, assignment]
        (completion,) = asked(backend, "complete")
    assert completion.meta["finish_reason"] == {"type": "stop", "matched": "END"}
    assert "prompt_tokens" not in completion.meta


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("beginning", "reply", "rest"),
    [("Name:", "Name: Bob", " Bob"), ("Name:", "Name:", ""), ("Name:", "Bob", "Bob"),
     ("Name:", "Names", "Names"), ("Name:", "Nam", "Nam"),
     ("The answer is ", "The answer is Paris of course", "Paris of course"),
     ("The answer is", "The answers are two", "The answers are two"),
     (" A, or", "A, or B, or C", " B, or C")],
)  # fmt: skip
def test_a_repeated_beginning_is_taken_off(beginning: str, reply: str, rest: str, way: str) -> None:
    begun = Prompt("", (*PROMPT.messages, {"role": "assistant", "content": beginning}))
    with FakeOpenAI(reply) as service, model(service) as backend:
        *shown, last = asked(backend, way, begun)
    assert last.text == rest
    assert all(rest.startswith(c.text) for c in shown)


def test_only_whole_words_are_a_repetition() -> None:
    assert without("A", "Alice") == "Alice"
    assert without("A", "A cat") == " cat"
    assert without("A: ", "A:\n1") == "\n1"


@pytest.mark.parametrize("way", WAYS)
def test_a_wrapped_value_comes_out_of_its_object(way: str) -> None:
    with FakeOpenAI('{"value": [1, {"a": 2}]} ') as service, model(service) as backend:
        *shown, last = asked(backend, way, json_schema={"type": "array"})
    assert last.text == '[1, {"a": 2}]'
    assert all(last.text.startswith(c.text) for c in shown)


@given(st.text('{}ab "', max_size=12), st.integers(0, 40))
def test_a_wrapped_value_grows(value: str, cut: int) -> None:
    whole = '{ "value" :' + value + "x } "
    assert unwrapped(whole) == value.lstrip() + "x"
    assert unwrapped(whole).startswith(unwrapped(whole[:cut]))


@pytest.mark.slow
@given(st.text("ab"), st.lists(st.text("ab", min_size=1), min_size=1))
def test_what_may_begin_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    parts = {stop[:n] for stop in stops for n in range(1, len(stop))}
    assert held(text, stops) == max([len(p) for p in parts if text.endswith(p)], default=0)


def test_servers_without_usage() -> None:
    with FakeOpenAI("one", usage=False) as service, model(service) as backend:
        for way in WAYS:
            last = asked(backend, way)[-1]
            assert last.text == "one"
            assert not {"prompt_tokens", "completion_tokens"} & last.meta.keys()
        assert backend.token_usage.prompt_tokens == 0


FAILURES = [
    (Refuse(400, "bad stop"), errors.BadRequest, 400, "OpenAI answered 400: bad stop"),
    (
        Refuse(401, "who?"),
        errors.AuthenticationFailed,
        401,
        "401: who.*OPENAI_API_KEY or",
    ),
    (Refuse(404, "no m"), errors.NotFound, 404, "404: no m"),
    (Refuse(429, "slow"), errors.RateLimited, 429, "429: slow .*after 0 retries"),
    (Refuse(500, "oh"), errors.ServerFailed, 500, "500: oh"),
    (Refuse(503, "busy"), errors.ServerFailed, 503, "503: busy"),
    (Broken(), errors.ConnectionFailed, None, "the connection to http.*/v1/ failed"),
    (Late(9, "x"), errors.TimedOut, None, "gave no answer within 0.05 s; raise timeout="),
]
ONLY_WHOLE = [
    (Broken(b'{"id": '), errors.BackendError, None, "malformed reply: Expecting value"),
    (Broken(b"[1, 2]"), errors.BackendError, None, "malformed reply"),
    (Broken(b'{"id": 1}'), errors.BackendError, None, "malformed reply"),
    (Broken(b'{"choices": [3], "output": [3]}'), errors.BackendError, None, "fields are not those"),
]
ONLY_STREAMED = [
    (Broken(b"data: {oops\n\n", "a b"), errors.BackendError, None, "malformed reply"),
    (Broken(b"data: 7\n\n", "a b"), errors.BackendError, None, "is 7, not a JSON object"),
    (
        Broken(b'data: {"x": 1}\n\n', "a b"),
        errors.BackendError,
        None,
        "malformed reply",
    ),
    (Broken(b"", "a b c"), errors.BackendError, None, "stream was cut after [0-9] characters"),
    (Refuse(500, "out of luck", as_event=True), errors.BackendError, None, "out of luck"),
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("way", "reply", "kind", "status", "message"),
    [(way, *case) for way in WAYS for case in FAILURES]
    + [(way, *case) for way in WAYS[:2] for case in ONLY_WHOLE]
    + [(way, *case) for way in WAYS[2:] for case in ONLY_STREAMED],
)
def test_every_failure_is_an_error_of_its_kind(
    way: str,
    reply: Any,
    kind: type[errors.BackendError],
    status: int | None,
    message: str,
    api: str,
) -> None:
    timeout = 0.05 if isinstance(reply, Late) else 60
    options = {"api": api, "timeout": timeout, "max_concurrency": 1}
    with FakeOpenAI(reply) as service, model(service, **options) as backend:
        for _ in range(5):
            with pytest.raises(kind) as caught:
                asked(backend, way)
            if "no connection to" not in str(caught.value):  # a busy machine may be as late
                break
        assert re.search(message, str(caught.value))
        assert type(caught.value) is kind
        assert caught.value.status == status
        assert caught.value.prompt_tail == "Tell me"
        if status:
            assert caught.value.request_id == "req_1"
        if kind is not errors.TimedOut:
            service.script = "fine"
            assert asked(backend, way)[-1].text == "fine"  # the slot was given back


ODD = [
    (
        {"content": None, "refusal": "not that"},
        ("chat", "responses"),
        "model refuses: not that",
    ),
    ({"content": None, "tool_calls": [{"id": "1"}]}, ("chat",), "calls a tool instead"),
    ({"content": None, "finish_reason": "content_filter"}, ("chat", "responses"), "filter"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("reply", "api", "message"), [(reply, api, text) for reply, apis, text in ODD for api in apis]
)
def test_a_reply_without_text_says_why(reply: Any, api: str, message: str, way: str) -> None:
    with FakeOpenAI(reply) as service, model(service, api=api) as backend:
        with pytest.raises(errors.BackendError, match=message) as caught:
            asked(backend, way)
        assert caught.value.request_id == "req_1"
        assert "malformed" not in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_model_that_only_reasoned_says_so(api: str, way: str) -> None:
    starved = {"content": None, "finish_reason": "length"}
    spent = pytest.raises(errors.BackendError, match="all 9 tokens went into reasoning; raise max_")
    with FakeOpenAI(starved) as service:
        with model(service, model_name="o3", api=api) as backend, spent:
            asked(backend, way, max_new_tokens=9)
        with model(service, api=api) as backend:
            assert asked(backend, way, max_new_tokens=9)[-1].text == ""


@pytest.mark.parametrize("way", WAYS)
def test_a_text_is_cut_at_the_stop_that_is_complete_first(way: str) -> None:
    with FakeOpenAI("one two three") as service, model(service, api="responses") as backend:
        *shown, last = asked(backend, way, stop=["two three", "wo"])
    assert (last.text, last.meta["finish_reason"]["matched"]) == ("one t", "wo")
    assert all(last.text.startswith(c.text) for c in shown)


def test_to_connect_takes_no_longer_than_seconds() -> None:
    class ConnectTimeout(Exception):
        """Stands in for the HTTP package's error; the client's own error is raised from it."""

    class APITimeoutError(Exception):
        """Stands in for the client's error."""

    late = APITimeoutError()
    late.__cause__ = ConnectTimeout()
    for seconds in (60, 2):
        backend = OpenAI("m", base_url="http://127.0.0.1:1/v1", timeout=seconds)
        limit = backend.open_client().timeout
        assert (limit.connect, limit.read) == (min(seconds, 5), seconds)
        error = backend.translated(late, PROMPT)
        assert isinstance(error, errors.TimedOut)
        assert f"no connection to http://127.0.0.1:1/v1/ within {limit.connect:g} s" in str(error)


def test_no_log_probabilities_though_asked_for() -> None:
    missing = pytest.raises(errors.BackendError, match="no log-probabilities, which were asked for")
    with FakeOpenAI({"content": ""}) as service, model(service) as backend, missing:
        asked(backend, "complete", return_logprob=True)


@pytest.mark.parametrize("way", ["complete", "astream"])
def test_the_client_tries_again_when_it_is_told_to(way: str) -> None:
    soon = {"retry-after-ms": "1", "retry-after": "0.001"}
    replies: list[Any] = [Refuse(429, headers=soon), Refuse(503, headers=soon), "third"]
    with FakeOpenAI(replies) as service, model(service, max_retries=2) as backend:
        assert asked(backend, way)[-1].text == "third"
        assert len(service.bodies) == 3
    with FakeOpenAI(Refuse(429, "slow", soon)) as service, model(service, max_retries=1) as backend:
        with pytest.raises(errors.RateLimited, match=r"slow.*after 1 retries"):
            asked(backend, way)
        assert len(service.bodies) == 2


def test_max_concurrency_limits_threads_and_tasks_together() -> None:
    with FakeOpenAI("x", gather=3) as service, model(service, max_concurrency=3) as backend:

        async def tasks() -> list[Any]:
            return await asyncio.gather(*(backend.acomplete(PROMPT, DEFAULTS) for _ in range(20)))

        with ThreadPoolExecutor(9) as pool:
            loop = pool.submit(asyncio.run, tasks())
            texts = list(pool.map(lambda _: asked(backend, "stream")[-1].text, range(20)))
        assert [*texts, *(c.text for (c,) in loop.result())] == ["x"] * 40
        assert service.most_under_way == 3
    with pytest.raises(ValueError, match="max_concurrency is 0; it is at least 1"):
        OpenAI("m", base_url=service.url, max_concurrency=0)


def test_abandoned_streams_and_cancelled_tasks_free_their_slots() -> None:
    replies: list[Any] = [Late(9, "a b c"), Late(9, "a b c"), "fine"]
    with FakeOpenAI(replies) as service, model(service, max_concurrency=1) as backend:
        stream: Any = backend.stream(PROMPT, DEFAULTS)
        next(stream)
        stream.close()

        async def impatient() -> Any:
            calls = [asyncio.create_task(backend.acomplete(PROMPT, DEFAULTS)) for _ in range(2)]
            while len(service.bodies) < 2:
                await asyncio.sleep(0.001)
            for call in reversed(calls):
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            return await backend.acomplete(PROMPT, DEFAULTS)

        assert asyncio.run(impatient())[0].text == "fine"


@given(st.lists(st.tuples(st.sampled_from(["begin", "cancel", "end"]), st.integers(0, 9))))
def test_slots_are_neither_lost_nor_made(actions: list[tuple[str, int]]) -> None:
    async def play() -> None:
        slots, inside = Slots(2), []

        async def hold() -> None:
            async with slots.held():
                leave = asyncio.Event()
                inside.append(leave)
                try:
                    await leave.wait()
                finally:
                    inside.remove(leave)

        tasks = [asyncio.create_task(hold()) for _ in range(4)]
        for action, which in [*actions, *[("begin", 2)] * 3]:
            for _ in range(which % 4):
                await asyncio.sleep(0)
            if action == "begin":
                tasks.append(asyncio.create_task(hold()))
            elif action == "cancel":
                tasks[which % len(tasks)].cancel()
            elif inside:
                inside[which % len(inside)].set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(inside) == 2
        for task in tasks:
            task.cancel()

    asyncio.run(play())


@pytest.mark.slow
def test_nothing_is_left_open() -> None:
    threads = running_threads()
    with warnings.catch_warnings(), FakeOpenAI("x y") as service:
        warnings.simplefilter("error")
        backend = OpenAI("m", base_url=service.url)
        for way in WAYS:
            asked(backend, way)

        async def client() -> Any:
            return await backend.loop_client()

        assert asyncio.run(client()).is_closed()  # by the loop's end

        async def shut_down_inside() -> None:
            await backend.acomplete(PROMPT, DEFAULTS)
            backend.shutdown()

        asyncio.run(shut_down_inside())
        with pytest.raises(errors.BackendError, match="has been shut down"):
            asked(backend, "complete")
        gc.collect()
        while service.connections:  # the server sees them go
            time.sleep(0.001)
    assert reaches(lambda: running_threads() <= threads)


@sgl.function
def capitals(s, countries):
    s += sgl.system("Name capitals.")
    for country in countries:
        s += sgl.user(f"Of {country}?")
        s += sgl.assistant(sgl.gen(country, max_tokens=5))


def test_a_program() -> None:
    replies = {"Of France?": "Paris", "Of Italy?": "Rome"}
    with FakeOpenAI(by_prompt(replies)) as service, model(service) as backend:
        state = capitals.run(["France", "Italy"], backend=backend)
        assert (state["France"], state["Italy"]) == ("Paris", "Rome")
        roles = [turn["role"] for turn in service.bodies[-1]["messages"]]
        assert roles == ["system", "user", "assistant", "user"]
        service.script = Refuse(400, "no")
        with pytest.raises(sgl.ProgramError, match=r"OpenAI answered 400: no; request id req_3; "):
            capitals.run(["Spain"], backend=backend).text()


@pytest.mark.parametrize("count", ["x", "", float("inf"), [1]])
@pytest.mark.parametrize("api", [ChatExchange, TextExchange, ResponsesExchange])
def test_a_count_that_is_none_is_a_bad_reply(api: type[Exchange], count: Any) -> None:
    text = {"type": "output_text", "text": "a"}
    reply = {
        "choices": [{"message": {"content": "a"}, "text": "a"}],
        "output": [{"type": "message", "content": [text]}],
        "usage": {"prompt_tokens": count, "input_tokens": count},
    }
    exchange = api(OpenAIService("o", "m"), PROMPT, GenParams())
    with pytest.raises(BadReply, match="not those of the API"):
        exchange.completions(reply)
