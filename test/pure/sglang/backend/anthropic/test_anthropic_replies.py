"""Replies read by the Anthropic backend: text, meta_info, streams, errors, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from helpers.fake_anthropic import Broken, FakeAnthropic, Late, Refuse
from sglang import errors
from sglang.backend.anthropic.anthropic_backend import Anthropic
from sglang.backend.anthropic.anthropic_messages import MessagesReply, MessagesRequest
from sglang.backend.base import Call, Complete, Completion, Prompt, StreamCall
from sglang.backend.service_backend import BadReply
from sglang.ir.params import DEFAULTS, GenParams

Way = Callable[[Anthropic, Call], Any]
HI = Prompt("Hi", ({"role": "user", "content": "Hi"},))


@pytest.fixture(params=["threads", "event loop"])
def do(request: pytest.FixtureRequest) -> Way:
    """A call of a thread, or the same in an event loop."""
    if request.param == "threads":
        return lambda backend, call: call.do(backend)
    return lambda backend, call: asyncio.run(call.ado(backend))


def backend(service: FakeAnthropic, **options: Any) -> Anthropic:
    return Anthropic(
        "claude-opus-5", base_url=service.url, api_key="key", **{"max_retries": 0, **options}
    )


def gen(prompt: Prompt = HI, **params: Any) -> Complete:
    return Complete(prompt, GenParams(**params).over(DEFAULTS))


def streamed(do: Way, model: Anthropic, call: Complete) -> list[Completion]:
    seen: list[Completion] = []
    do(model, StreamCall(call.prompt, call.params, seen.append))
    return seen


def begun(text: str) -> Prompt:
    return Prompt("", (*HI.messages, {"role": "assistant", "content": text}))


def test_meta_info_and_usage(do: Way) -> None:
    prompt = Prompt("", ({"role": "user", "content": "one two three"},))
    with FakeAnthropic("a b", cached=2) as service:
        model = backend(service)
        (whole,) = do(model, gen(prompt))
        growing = streamed(do, model, gen(prompt))
    assert whole == Completion(
        "a b",
        {
            "id": "msg_1",
            "request_id": "req_fake",
            "prompt_tokens": 3,
            "cached_tokens": 2,
            "completion_tokens": 2,
            "finish_reason": {"type": "stop", "matched": None},
        },
    )
    assert [completion.text for completion in growing] == ["a", "a b", "a b"]
    assert growing[0].meta["finish_reason"] is None
    assert growing[-1].meta == {**whole.meta, "id": "msg_2"}
    assert (model.token_usage.prompt_tokens, model.token_usage.completion_tokens) == (6, 4)
    model.token_usage.reset()
    assert model.token_usage.prompt_tokens == 0


@pytest.mark.parametrize(
    ("params", "text", "reason"),
    [
        ({"max_new_tokens": 2}, "one two", {"type": "length", "length": 2}),
        ({"stop": "three"}, "one two\n\n", {"type": "stop", "matched": "three"}),
        ({"stop": ["four", "\n\n"]}, "one two", {"type": "stop", "matched": "\n\n"}),
        ({"stop": [" "]}, "one", {"type": "stop", "matched": " "}),
        ({}, "one two\n\nthree four", {"type": "stop", "matched": None}),
    ],
)
def test_where_a_text_ends(do: Way, params: dict[str, Any], text: str, reason: Any) -> None:
    with FakeAnthropic("one two\n\nthree four") as service:
        model = backend(service)
        (whole,) = do(model, gen(**params))
        growing = streamed(do, model, gen(**params))
    assert (whole.text, whole.meta["finish_reason"]) == (text, reason)
    assert growing[-1].text == text
    assert all(text.startswith(completion.text) for completion in growing)


def test_a_stream_holds_back_what_may_still_be_cut() -> None:
    asked = MessagesRequest({}, cut=" \n", stops=("\n\n",), n=1)
    shown = [
        asked.so_far(MessagesReply(text=text)).text
        for text in (" ", " \na", "a\n", "a\nb", "a\n\nb")
    ]
    assert shown == ["", "a", "a", "a\nb", "a"]


def test_a_text_is_cut_at_the_stop_that_is_complete_first(do: Way) -> None:
    with FakeAnthropic("a \n\nb") as service:
        model = backend(service)
        (whole,) = do(model, gen(stop=[" \n\n", "\n"]))
        assert streamed(do, model, gen(stop=[" \n\n", "\n"]))[-1].text == "a "
    assert (whole.text, whole.meta["finish_reason"]["matched"]) == ("a ", "\n")


def test_to_connect_takes_no_longer_than_seconds() -> None:
    for seconds in (60, 2):
        model = Anthropic("claude-opus-5", api_key="key", timeout=seconds)
        assert (model.call_timeout.connect, model.call_timeout.read) == (min(seconds, 5), seconds)


def test_white_space_that_ends_a_begun_turn_is_not_doubled(do: Way) -> None:
    with FakeAnthropic(" \nAlice", "Bob") as service:
        model = backend(service)
        assert do(model, gen(begun("Name: \n")))[0].text == "Alice"
        assert streamed(do, model, gen(begun("Name: \n")))[-1].text == "Bob"


def test_thinking_is_no_part_of_the_text(do: Way) -> None:
    thinking = {"type": "thinking", "thinking": "hm, well", "signature": "s"}
    said = {"content": [thinking, {"type": "text", "text": "yes it is"}]}
    starved = {"content": [thinking], "stop_reason": "max_tokens"}
    with FakeAnthropic(said, said, starved) as service:
        model = backend(service)
        assert do(model, gen())[0].text == "yes it is"
        assert [c.text for c in streamed(do, model, gen())] == [
            "yes", "yes it", "yes it is", "yes it is"
        ]  # fmt: skip
        with pytest.raises(errors.BackendError, match="went into thinking; raise max_tokens"):
            do(model, gen())


class Event:
    """An object of the package."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def to_dict(self) -> dict[str, Any]:
        return self._fields


@pytest.mark.parametrize("called", [False, True])
def test_tools_of_the_service_are_no_calls_of_the_program(called: bool) -> None:
    reply = MessagesReply()
    reply.add(Event(type="message_start", message={"id": "m", "usage": {}}))
    for name in ["mine"] * called + ["web_search"]:
        kind = "server_tool_use" if name == "web_search" else "tool_use"
        block = {"type": kind, "id": name, "name": name, "input": {}}
        reply.add(Event(type="content_block_start", content_block=block))
        delta = {"type": "input_json_delta", "partial_json": f'{{"{name}": 1}}'}
        reply.add(Event(type="content_block_delta", delta=delta))
    made = [{"id": "mine", "name": "mine", "arguments": '{"mine": 1}'}] if called else []
    assert reply.meta().get("tool_calls", []) == made


def test_a_refusal_of_the_model_says_why(do: Way) -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "too risky"}
    reply = {"content": [], "stop_reason": "refusal", "stop_details": details}
    with FakeAnthropic(reply) as service:
        for ask in (do, lambda model, call: streamed(do, model, call)):
            with pytest.raises(errors.BackendError, match="refusal, bio, too risky") as caught:
                ask(backend(service), gen())
            assert (caught.value.request_id, caught.value.prompt_tail) == ("req_fake", "Hi")


@pytest.mark.parametrize(
    ("status", "kind", "retried"),
    [
        (400, errors.BadRequest, False),
        (401, errors.AuthenticationFailed, False),
        (403, errors.PermissionDenied, False),
        (404, errors.NotFound, False),
        (429, errors.RateLimited, True),
        (500, errors.ServerFailed, True),
        (529, errors.ServerFailed, True),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_call(
    do: Way, status: int, kind: type[errors.BackendError], retried: bool, stream: bool
) -> None:
    prompt = Prompt("x" * 100 + "the end", HI.messages)
    with FakeAnthropic(Refuse(status, "not today", {"retry-after-ms": "1"})) as service:
        model = backend(service, max_retries=2)
        with pytest.raises(kind, match="not today") as caught:
            streamed(do, model, gen(prompt)) if stream else do(model, gen(prompt))
    error = caught.value
    assert (error.status, error.request_id) == (status, "req_fake")
    assert error.prompt_tail is not None
    assert error.prompt_tail.endswith("xthe end")
    assert len(service.bodies) == (3 if retried else 1)


def test_what_succeeds_after_retries(do: Way) -> None:
    soon = {"retry-after-ms": "1"}
    replies: list[Any] = [Broken(), Refuse(429, headers=soon), Refuse(529, headers=soon), "there"]
    with FakeAnthropic(*replies) as service:
        assert do(backend(service, max_retries=3), gen())[0].text == "there"
    assert len(service.bodies) == 4


@pytest.mark.parametrize(
    ("status", "kind"),
    [(529, errors.ServerFailed), (429, errors.RateLimited), (500, errors.ServerFailed)],
)
def test_an_error_within_a_stream(do: Way, status: int, kind: type[errors.BackendError]) -> None:
    refused = Refuse(status, "too busy", as_event=True)
    with FakeAnthropic(refused) as service, pytest.raises(kind, match="too busy") as caught:
        streamed(do, backend(service), gen())
    assert (caught.value.status, caught.value.request_id) == (status, "req_fake")
    assert str(caught.value).startswith("Anthropic ended the stream: too busy; request id")


DELTA = b"event: content_block_delta\ndata: "


@pytest.mark.parametrize(
    ("broken", "kind", "message"),
    [
        (Broken(None, "a b"), errors.ConnectionFailed, "connection to http://127.* failed"),
        (Broken(b"", "a b"), errors.BackendError, "ended without message_stop"),
        (Broken(DELTA + b'{"type": "cont\n\n', "a b"), errors.BackendError, "malformed"),
        (Broken(DELTA + b'{"type": "message_delta"}\n\n', "a"), errors.BackendError, "malformed"),
        (Broken(DELTA + b"5\n\n", "a b"), errors.BackendError, "malformed"),
    ],
)
def test_a_broken_stream(
    do: Way, broken: Broken, kind: type[errors.BackendError], message: str
) -> None:
    seen: list[Completion] = []
    with FakeAnthropic(broken) as service, pytest.raises(kind, match=message) as caught:
        do(backend(service), StreamCall(HI, DEFAULTS, seen.append))
    assert seen[-1].text == broken.text
    assert caught.value.prompt_tail == "Hi"


@pytest.mark.parametrize("body", [b"{", b"5", b"{}", b'{"content": [{"type": "text"}]}', None])
def test_a_broken_reply(do: Way, body: bytes | None) -> None:
    kind = errors.ConnectionFailed if body is None else errors.BackendError
    with FakeAnthropic(Broken(body)) as service, pytest.raises(kind) as caught:
        do(backend(service), gen())
    assert ("malformed" in str(caught.value)) is (body is not None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_late_reply(do: Way, stream: bool) -> None:
    with FakeAnthropic(Late(30, "a b c d")) as service:
        model = backend(service, timeout=0.2)
        for _ in range(5):
            with pytest.raises(errors.TimedOut) as caught:
                streamed(do, model, gen()) if stream else do(model, gen())
            if "no connection to" not in str(caught.value):  # a busy machine may be as late
                break
        assert "within 0.2 s; raise timeout=" in str(caught.value)


def test_samples_are_calls_of_their_own(do: Way) -> None:
    with FakeAnthropic("a", "b", "c", gather=3) as service:
        completions = do(backend(service), gen(n=3))
    assert sorted(completion.text for completion in completions) == ["a", "b", "c"]
    assert all("n" not in body for body in service.bodies)


def test_one_sample_that_fails_fails_all(do: Way) -> None:
    replies: list[Any] = ["a", Refuse(400, "not this one"), "c"]
    with FakeAnthropic(*replies, gather=3) as service, pytest.raises(errors.BadRequest):
        do(backend(service), gen(n=3))


def test_no_more_calls_at_a_time_than_allowed() -> None:
    """Each call waits until two are in flight, so two at a time are also reached."""

    async def all_at_once(model: Anthropic) -> None:
        await asyncio.gather(*(gen().ado(model) for _ in range(6)))

    def by_threads(model: Anthropic) -> None:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(gen().do, [model] * 6))

    for run in (by_threads, lambda model: asyncio.run(all_at_once(model))):
        with FakeAnthropic(Late(0.05, "a"), gather=2) as service:
            run(backend(service, max_concurrency=2))
        assert (len(service.bodies), service.most_under_way) == (6, 2)


def test_a_stream_that_is_left_gives_its_slot_back() -> None:
    async def left(model: Anthropic) -> None:
        growing = model.astream(HI, DEFAULTS)
        await anext(growing)
        await growing.aclose()

    with FakeAnthropic("a b c") as service:
        model = backend(service, max_concurrency=1)
        growing = model.stream(HI, DEFAULTS)
        next(growing)
        growing.close()  # type: ignore[attr-defined]
        asyncio.run(left(model))
        assert gen().do(model)[0].text == "a b c"


def test_a_backend_that_is_shut_down_says_so() -> None:
    with FakeAnthropic("a") as service:
        model = backend(service)
        gen().do(model)
        model.shutdown()
        model.shutdown()
        with pytest.raises(errors.BackendError, match="has been shut down"):
            gen().do(model)


def test_a_long_reply_may_be_asked_for_without_streaming(do: Way) -> None:
    """The package refuses this where it is left to its own timeout."""
    with FakeAnthropic("a") as service:
        assert do(backend(service), gen(max_new_tokens=100_000))[0].text == "a"


class Counted(dict[str, Any]):
    """An object of the package."""

    def to_dict(self) -> dict[str, Any]:
        return dict(self)


@pytest.mark.parametrize("count", ["x", [1], float("inf")])
def test_a_count_that_is_none_is_a_bad_reply(count: Any) -> None:
    reply = MessagesReply()
    reply.add_message(Counted(usage={"input_tokens": count}, content=[], stop_reason="end_turn"))
    with pytest.raises(BadReply, match="the usage"):
        reply.meta()
    with pytest.raises(BadReply, match="the event"):
        MessagesReply().add(Counted(type="message_start", message={"usage": "x"}))
