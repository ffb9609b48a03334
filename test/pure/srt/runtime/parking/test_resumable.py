"""``park`` and ``resume`` of /generate: a generation goes on behind a pause as without one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import Served, is_error, serve_text
from sglang.srt.config import Config
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import ANYBODY
from sglang.srt.runtime.generate_request import GenerateRequest
from sglang.srt.runtime.parking import resumable
from sglang.srt.runtime.request_fields import convert
from sglang.srt.runtime.resumed_request import laid_over, read_call

PROMPT = "the lazy dog"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = Config.of(max_parked_per_key=4)
    with serve_text(tmp_path_factory.mktemp("toy"), config, seconds=0.002) as served:
        yield served


@pytest.fixture(autouse=True)
def clean(served: Served) -> Iterator[None]:
    """Each test leaves nothing parked, and books that balance."""
    yield
    served.client.post("/abort_request", json={"abort_all": True})
    served.client.idle()
    runtime = served.state.runtime
    runtime.parked.check()
    runtime.handles.check()
    assert runtime.parked.empty


def answer(served: Served, **body: Any) -> dict[str, Any]:
    reply = served.client.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def error(served: Served, status: int, **body: Any) -> dict[str, Any]:
    return is_error(served.client.post("/generate", json=body), status)


def handle_of(found: dict[str, Any]) -> str:
    handle: str = found["meta_info"]["finish_reason"]["resume"]
    return handle


def sampling(**more: Any) -> dict[str, Any]:
    return {"temperature": 0, "ignore_eos": True, **more}


def parked(served: Served, tokens: int = 6, **body: Any) -> dict[str, Any]:
    settings = {**sampling(max_new_tokens=tokens), **body.pop("sampling_params", {})}
    return answer(served, text=PROMPT, sampling_params=settings, park={"tool": "t"}, **body)


@pytest.mark.parametrize("seeded", [{}, {"temperature": 1.0, "seed": 7}])
@pytest.mark.parametrize("stream", [False, True])
def test_resumed_text_is_the_uninterrupted_one(
    served: Served, seeded: dict[str, Any], stream: bool
) -> None:
    whole = answer(served, text=PROMPT, sampling_params={**sampling(max_new_tokens=30), **seeded})
    first = parked(served, 10, sampling_params=seeded)
    handle = handle_of(first)
    assert served.client.stats()["contexts"] == 1
    body: dict[str, Any] = {"resume": handle, "park": {}}
    if stream:
        with served.client.stream("POST", "/generate", json={**body, "stream": True}) as reply:
            lines = [line for line in reply.iter_lines() if line]
        second = json.loads(lines[-2].partition("data: ")[2])
        assert "resume" not in json.loads(lines[1].partition("data: ")[2])["meta_info"]
    else:
        second = answer(served, **body)
    third = answer(served, resume=handle_of(second), sampling_params={"max_new_tokens": 10})
    parts = [first, second, third]
    assert [token for part in parts for token in part["output_ids"]] == whole["output_ids"]
    meta = third["meta_info"]
    length = whole["meta_info"]["prompt_tokens"] + 20
    assert meta["prompt_tokens"] == length
    assert meta["cached_tokens"] == length - 1, "the last token was sampled and not computed"
    assert "resume" not in meta["finish_reason"]


def test_text_is_put_behind_the_contexts_own_tokens(served: Served) -> None:
    served.client.post("/flush_cache")
    first = parked(served)
    tool = " quick brown fox"
    found = answer(served, resume=handle_of(first), text=tool)
    ids = served.tokenizer.encode(PROMPT).tolist() + first["output_ids"]
    behind = served.tokenizer.encode(tool, False).tolist()
    again = answer(served, input_ids=ids + behind, sampling_params=sampling(max_new_tokens=6))
    assert found["output_ids"] == again["output_ids"]
    meta = found["meta_info"]
    assert meta["prompt_tokens"] - meta["cached_tokens"] == 1 + len(behind)
    first = parked(served)
    assert (
        answer(served, resume=handle_of(first), input_ids=behind)["output_ids"]
        == (found["output_ids"])
    )


def test_settings_are_laid_over_those_of_the_generation() -> None:
    before = {"seed": 1, "max_tokens": 5, "regex": "a+"}
    assert laid_over(before, {}) == ({"seed": 1, "max_new_tokens": 5, "regex": "a+"}, False)
    assert laid_over(before, {"max_new_tokens": 7}) == (
        {"seed": 1, "max_new_tokens": 7, "regex": "a+"}, False,
    )  # fmt: skip
    assert laid_over(before, {"ebnf": "x"}) == (
        {"seed": 1, "max_new_tokens": 5, "ebnf": "x"}, True,
    )  # fmt: skip
    assert laid_over(before, {"regex": None})[1]
    assert laid_over(before, {"sampling_seed": 2}) == (
        {"seed": 2, "max_new_tokens": 5, "regex": "a+"}, True,
    )  # fmt: skip


def test_a_new_seed_begins_a_new_generation(served: Served) -> None:
    first = parked(served, sampling_params={"temperature": 1.0, "seed": 3})
    found = answer(served, resume=handle_of(first), sampling_params={"seed": 3})
    ids = served.tokenizer.encode(PROMPT).tolist() + first["output_ids"]
    settings = sampling(temperature=1.0, seed=3, max_new_tokens=6)
    assert found["output_ids"] == answer(
        served, input_ids=ids, sampling_params=settings
    )["output_ids"]  # fmt: skip


def test_one_key_gets_one_answer(served: Served) -> None:
    handle = handle_of(parked(served))
    body = {"resume": handle, "text": " fox", "idempotency_key": "k", "park": {}}
    first = answer(served, **body)
    assert answer(served, **body) == first
    assert answer(served, resume=handle_of(first))["output_ids"], "the answer's handle is one"
    conflicts: list[tuple[dict[str, Any], str]] = [
        ({**body, "idempotency_key": "l"}, "was resumed already"),
        ({"resume": handle}, "was resumed already"),
        ({**body, "text": " dog"}, "with another body"),
    ]
    for other, told in conflicts:
        found = error(served, 409, **other)
        assert found["code"] == "conflict"
        assert told in found["message"]


def test_one_key_gets_one_answer_while_it_runs(served: Served) -> None:
    handle = handle_of(parked(served))
    settings = {"max_new_tokens": 150}
    body = {"resume": handle, "idempotency_key": "k", "sampling_params": settings}
    gone = served.open(body)
    running(served)
    assert "is being resumed" in error(served, 409, resume=handle)["message"]
    gone.close()  # the request runs on
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(answer, served, **body) for _ in range(3)]
        with served.client.stream("POST", "/generate", json={**body, "stream": True}) as reply:
            lines = [line for line in reply.iter_lines() if line]
        found = [one.result() for one in waiting]
    streamed = json.loads(lines[-2].partition("data: ")[2])
    assert found == [streamed] * 3
    assert len(streamed["output_ids"]) == 150
    assert served.client.stats()["received"] == served.client.stats()["finished"]


def running(served: Served) -> None:
    deadline = time.monotonic() + 30
    while not served.client.stats()["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_resume_without_an_answer_gives_the_context_back(served: Served) -> None:
    first = parked(served)
    handle = handle_of(first)
    gone = served.open({"resume": handle, "sampling_params": {"max_new_tokens": 900}})
    running(served)
    gone.close()
    served_until(served, lambda: not served.client.stats()["running"])
    assert served.client.stats()["contexts"] == 1, "it is parked again"
    for named in ({}, {"idempotency_key": "k"}):
        body = {"resume": handle, "rid": "r", "sampling_params": {"max_new_tokens": 900}, **named}
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(answer, served, **body)
            running(served)
            served.client.post("/abort_request", json={"rid": "r"})
            ended = waiting.result()["meta_info"]["finish_reason"]
        assert ended["type"] == "abort"
    assert error(served, 400, resume=handle, sampling_params={"top_p": 7})["param"] == "top_p"
    found = error(served, 400, resume=handle, text="fox " * 2000)
    assert found["code"] == "context_length_exceeded"
    whole = answer(served, text=PROMPT, sampling_params=sampling(max_new_tokens=12))
    second = answer(served, resume=handle)
    assert first["output_ids"] + second["output_ids"] == whole["output_ids"]


def served_until(served: Served, done: Any) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_deadline_ends_the_wait(served: Served) -> None:
    settings = sampling(max_new_tokens=4)
    found = answer(
        served, text=PROMPT, sampling_params=settings, park={"deadline_seconds": 0.05}
    )  # fmt: skip
    served_until(served, lambda: not served.client.stats()["contexts"])
    gone = error(served, 410, resume=handle_of(found))
    assert gone["code"] == "expired"
    assert "Send the whole prompt" in gone["message"]
    metrics = served.client.get("/metrics").text
    for name in ("num_parked_contexts", "parked_bytes"):
        assert f'sglang:{name}{{model_name="sglang-tiny"}} 0.0' in metrics
    assert served.state.runtime.parked.expired == 1
    assert 'sglang:expired_contexts_total{model_name="sglang-tiny"} 1.0' in metrics


def test_an_abort_closes_what_is_parked(served: Served) -> None:
    handle = handle_of(parked(served, rid="mine"))
    reply = served.client.post("/abort_request", json={"rid": "mine"})
    assert reply.json()["aborted"] == 1
    assert error(served, 410, resume=handle)["code"] == "expired"
    assert served.client.stats()["contexts"] == 0


def test_too_many_parked_are_refused_before_they_run(served: Served) -> None:
    handles = [handle_of(parked(served)) for _ in range(4)]
    before = served.client.stats()["received"]
    found = error(served, 429, text=PROMPT, park={})
    assert found["code"] == "queue_full"
    assert "--max-parked-per-key" in found["message"]
    assert served.client.stats()["received"] == before
    answer(served, resume=handles[0])
    parked(served)


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"text": ["a", "b"], "park": {}}, 400, "one prompt"),
    ({"text": "a", "park": {}, "sampling_params": {"n": 2}}, 400, "one prompt"),
    ({"text": "a", "park": {}, "sampling_params": {"max_new_tokens": 0}}, 400, "max_new_tokens"),
    ({"parts": ["a", ["b", "c"]], "park": {}}, 400, "parts"),
    ({"text": "a", "park": {}, "session_params": {"id": "s"}}, 400, "session_params"),
    ({"text": "a", "park": {}, "return_hidden_states": True}, 400, "return_hidden_states"),
    ({"text": "a", "park": {"deadline_seconds": 0}}, 400, "park.deadline_seconds is 0"),
    ({"text": "a", "park": {"expected_seconds": -1}}, 400, "park.expected_seconds is -1"),
    ({"text": "a", "park": {"tool": "t" * 300}}, 400, "park.tool has 300 characters"),
    ({"text": "a", "park": {"bogus": 1}}, 400,
     "park has an unknown field 'bogus'; its fields are tool, expected_seconds, deadline_seconds."),
    ({"text": "a", "idempotency_key": "k"}, 400, "without resume"),
    ({"resume": "unknown"}, 404, "no parked context"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "told"), BAD)
def test_what_cannot_be_parked_or_resumed_is_named(
    served: Served, body: dict[str, Any], status: int, told: str
) -> None:
    assert told in error(served, status, **body)["message"]


def test_a_resume_is_one_text(served: Served) -> None:
    handle = handle_of(parked(served))
    for settings in ({"n": 2}, {"max_new_tokens": 0}):
        found = error(served, 400, resume=handle, sampling_params=settings)
        assert found["code"] == "unsupported"
    bad: list[tuple[dict[str, Any], str]] = [
        ({"text": ["a"]}, "one text"),
        ({"text": "a", "input_ids": [1]}, "not both"),
        ({"lora_path": "x"}, "lora_path is given with resume"),
        ({"cache_salt": "x"}, "cache_salt is given with resume"),
        ({"parts": ["a"]}, "parts is given with resume"),
    ]
    for fields, told in bad:
        assert told in error(served, 400, resume=handle, **fields)["message"]
    assert answer(served, resume=handle)


@pytest.mark.parametrize("named", [{}, {"idempotency_key": "k"}])
@pytest.mark.parametrize(
    ("fields", "param"),
    [({"text": "x\ud800"}, "text"), ({"sampling_params": {"stop": object()}}, "sampling_params")],
)
def test_what_is_no_json_is_bad_input(
    served: Served, named: dict[str, Any], fields: dict[str, Any], param: str
) -> None:
    """``sglang.Engine.generate`` may be given what no HTTP request can hold."""
    handle = handle_of(parked(served))

    async def resume() -> None:
        runtime = served.state.runtime
        body = convert({"resume": handle, **fields, **named}, GenerateRequest)
        with pytest.raises(RequestError) as caught:
            await read_call(runtime, body, ANYBODY)
        assert caught.value.code == "invalid_value"
        if named:
            assert caught.value.param == param

    asyncio.run(resume())
    assert answer(served, resume=handle)


def test_lists_of_one_entry_are_their_entry(served: Served) -> None:
    lists = {
        "rid": ["my-id"], "return_logprob": [False], "return_hidden_states": [False],
        "cache_salt": [None], "sampling_params": [{"max_new_tokens": 3}], "stream": False,
    }  # fmt: skip
    found = answer(served, resume=handle_of(parked(served)), **lists)
    assert found["meta_info"]["id"] == "my-id"
    assert found["meta_info"]["completion_tokens"] == 3
    assert "output_token_logprobs" not in found["meta_info"]
    handle = handle_of(parked(served))
    found = answer(
        served, resume=handle, idempotency_key="k", return_logprob=[True], top_logprobs_num=[2]
    )  # fmt: skip
    assert len(found["meta_info"]["output_top_logprobs"][0]) == 2
    plain = {"return_logprob": True, "top_logprobs_num": 2}
    assert answer(served, resume=handle, idempotency_key="k", **plain) == found
    handle = handle_of(parked(served))
    for name, value in [
        ("rid", ["a", "b"]), ("rid", []), ("return_logprob", [True, False]),
        ("sampling_params", [{}, {}]), ("top_logprobs_num", [1, 2]), ("cache_salt", ["x"]),
    ]:  # fmt: skip
        assert error(served, 400, resume=handle, **{name: value})["param"] == name
    assert answer(served, resume=handle)


def test_another_tenant_finds_no_handle(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(
        json.dumps([{"name": "a", "key": "ka"}, {"name": "b", "key": "kb"}]), encoding="utf-8"
    )
    config = Config.of(api_keys_file=str(keys))
    with serve_text(tmp_path, config) as served:
        own, other = ({"Authorization": f"Bearer {key}"} for key in ("ka", "kb"))
        body = {"text": PROMPT, "sampling_params": sampling(max_new_tokens=4), "park": {}}
        first = served.client.post("/generate", json=body, headers=own).json()
        resume = {"resume": handle_of(first)}
        is_error(served.client.post("/generate", json=resume, headers=other), 404)
        text = {"text": PROMPT + first["text"] + " x", "sampling_params": {"max_new_tokens": 1}}
        found = served.client.post("/generate", json=text, headers=other).json()
        assert found["meta_info"]["cached_tokens"] == 0
        second = served.client.post("/generate", json=resume, headers=own)
        assert second.status_code == 200
        assert second.json()["meta_info"]["cached_tokens"] > 0


def works(served: Served) -> list[resumable.SharedWork]:
    handles = served.state.runtime.handles._handles.values()
    return [handle.work for handle in list(handles) if handle.work is not None]


def test_work_without_its_client_keeps_its_slot(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(
        json.dumps([{"name": "a", "key": "ka", "max_concurrent_requests": 2}]), encoding="utf-8"
    )
    with serve_text(tmp_path, Config.of(api_keys_file=str(keys)), seconds=0.002) as served:
        own = served.client.headers["Authorization"] = "Bearer ka"
        tenant = served.state.tenants._tenants["a"]
        handles = [handle_of(parked(served)) for _ in range(3)]
        served_until(served, lambda: not tenant.open)
        settings = {"max_new_tokens": 900}
        for count, handle in enumerate(handles[:2], 1):
            body = {"resume": handle, "idempotency_key": "k", "sampling_params": settings}
            gone = served.open(body, headers=f"Authorization: {own}\r\n")
            served_until(served, lambda count=count: len(works(served)) == count)
            gone.close()
            served_until(served, lambda: not served.state.open_requests)
        assert tenant.open == 2
        third = {"resume": handles[2], "idempotency_key": "k"}
        assert "max_concurrent_requests" in error(served, 429, **third)["message"]
        served_until(served, lambda: not tenant.open)
        assert answer(served, **body)["meta_info"]["completion_tokens"] == 900
        assert answer(served, **third)
        served_until(served, lambda: not tenant.open)


def test_sampling_parameters_count_and_are_dropped_at_the_end(served: Served) -> None:
    runtime = served.state.runtime
    handle = handle_of(parked(served))
    small = runtime.parked.counts()["parked_bytes"]
    bias = {str(token): 0.5 for token in range(100)}
    other = handle_of(parked(served, sampling_params={"logit_bias": bias}))
    assert runtime.parked.counts()["parked_bytes"] - 2 * small >= len(json.dumps(bias))
    answer(served, resume=other, idempotency_key="k")
    found = runtime.handles.find(other, "")
    assert found.over
    assert found.generation.settings == {}
    assert runtime.handles._past[""][other] > len(json.dumps(bias)), "the answer's request has them"
    served.client.post("/abort_request", json={"abort_all": True})
    assert runtime.handles._handles[handle].generation.settings == {}


def test_sampling_parameters_need_room(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.state.runtime.parked, "_most_bytes", 3000)
    settings = sampling(max_new_tokens=4, logit_bias={str(token): 0.5 for token in range(300)})
    body = {"text": PROMPT, "park": {}, "sampling_params": settings}
    assert "--max-parked-bytes" in error(served, 429, **body)["message"]
    assert answer(served, **body | {"sampling_params": sampling(max_new_tokens=4)})


def test_old_answers_and_handles_give_way(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = served.state.runtime.handles
    first = handle_of(parked(served))
    body = {"resume": first, "idempotency_key": "k"}
    answer(served, **body)
    monkeypatch.setattr(handles, "_most_bytes", 1)
    second = handle_of(parked(served))
    answer(served, resume=second, idempotency_key="l")
    assert "kept no longer" in error(served, 409, **body)["message"]
    monkeypatch.setattr(resumable, "MOST_HANDLES", 1)
    answer(served, resume=handle_of(parked(served)))
    is_error(served.client.post("/generate", json={"resume": first}), 404)


def test_followers_see_each_output_once_before_an_error() -> None:
    async def main() -> list[str]:
        async def failing() -> Any:
            yield 0, Output(0, text="a")
            await asyncio.sleep(0.01)  # the follower has it by then
            raise RequestError("it failed")

        work = resumable.SharedWork(None, failing())  # type: ignore[arg-type]
        seen: list[str] = []

        async def follow() -> None:
            async for _, output in work.follow():
                seen.append(output.text)

        with pytest.raises(RequestError, match="it failed"):
            await follow()
        return seen

    assert asyncio.run(main()) == ["a"]


def test_loops_of_shared_work_end_with_the_server() -> None:
    """A follower of work that is cancelled ends too."""

    async def main() -> None:
        async def never() -> Any:
            await asyncio.sleep(60)
            yield 0, None

        work = resumable.SharedWork(None, never())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        work.cancel()
        assert [item async for item in work.follow()] == []

    asyncio.run(main())
