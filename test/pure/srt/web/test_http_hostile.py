"""Hostile requests: each gets its error, and the server goes on as if it had never come."""

from __future__ import annotations

import concurrent.futures
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.http_server import Served, is_error, serve_text
from helpers.waiting import until
from sglang.ir.sampling import PARAMETERS
from sglang.srt.config import Config
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.classification import ClassifyRequest
from sglang.srt.runtime.conversations.chat_request import ChatRequest
from sglang.srt.runtime.generate_request import GenerateRequest
from sglang.srt.runtime.scoring import RerankRequest, ScoreRequest
from sglang.srt.runtime.sessions import CloseSession, OpenSession
from sglang.srt.runtime.vectors import EncodeRequest
from sglang.srt.web.admin.routes import AbortBody
from sglang.srt.web.connection.guard import PROBES
from sglang.srt.web.native.token_routes import DetokenizeBody, TemplateBody, TokenizeBody
from sglang.srt.web.openai.completions import CompletionBody
from sglang.srt.web.openai.embeddings import EmbeddingBody

JSON = {"Content-Type": "application/json"}
ROUTES = ("/generate", "/v1/completions", "/v1/chat/completions")
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = Config.of(max_body_bytes=LIMIT)
    directory = tmp_path_factory.mktemp("tokenizer")
    with serve_text(directory, config, running=4, queued=8) as server:
        server.client.golden()
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    """The client; after the test the golden request gives what it gave before."""
    before = served.client.golden()
    yield served.client
    served.worker.seconds = 0.0
    served.client.idle()
    assert served.client.golden() == before


# -- bodies: rows 1, 2, 5, 6 ----------------------------------------------------------------------

DEEP = b"[" * 10_000 + b"]" * 10_000
BROKEN: dict[str, bytes] = {
    "empty": b"",
    "cut": b'{"text": "a"',
    "no object": b"[1]",
    "number": b"3",
    "duplicate keys": b'{"text": "a", "text": "b"}',
    "deep duplicate": b'{"text": "a", "sampling_params": {"n": 1, "n": 2}}',
    "NaN": b'{"text": "a", "sampling_params": {"temperature": NaN}}',
    "Infinity": b'{"text": "a", "sampling_params": {"temperature": -Infinity}}',
    "1e999": b'{"text": "a", "sampling_params": {"temperature": 1e999}}',
    "deep list": b'{"text": "a", "x": ' + DEEP + b"}",
    "deep object": b'{"text": "a", "x": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001,
    "unclosed": b"[" * 100_000,
    "huge number": b'{"text": "a", "priority": ' + b"9" * 5000 + b"}",
    "invalid UTF-8": b'{"text": "\xff\xfe"}',
    "UTF-16": '{"text": "a"}'.encode("utf-16"),
    "lone surrogate": b'{"text": "a\\ud800b"}',
    "surrogate stop": b'{"text": "a", "sampling_params": {"stop": "\\udfff"}}',
    "trailing": b'{"text": "a"} {}',
}


@pytest.mark.parametrize(
    "path", [*ROUTES, "/v1/embeddings", "/tokenize", "/detokenize", "/abort_request"]
)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_body_is_a_400(served: Served, path: str, name: str) -> None:
    reply = served.client.post(path, content=BROKEN[name], headers=JSON)
    if (name, path) == ("empty", "/abort_request"):
        return  # an empty body stands for {} there
    is_error(reply, 400)


def test_bodies_leave_no_trace(http: httpx.Client) -> None:
    """The golden request around all of them (the fixture's)."""
    for body in BROKEN.values():
        http.post("/generate", content=body, headers=JSON)


def test_nul_and_paired_surrogates_are_text(http: httpx.Client) -> None:
    body = b'{"text": "a\\u0000b \\ud83d\\ude42", "sampling_params": {"max_new_tokens": 1}}'
    found = http.post("/generate", content=body, headers=JSON)
    assert found.status_code == 200
    ids = http.post("/tokenize", json={"prompt": "a\x00b 🙂"}).json()
    assert found.json()["meta_info"]["prompt_tokens"] == ids["count"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None,
                                  "application/json; charset=utf-16"])  # fmt: skip
def test_a_wrong_content_type_is_a_415(http: httpx.Client, kind: str | None) -> None:
    for path in ROUTES:
        headers = {"Content-Type": kind} if kind else {}
        is_error(http.post(path, content=b'{"text": "a"}', headers=headers), 415)
    is_error(
        http.post("/generate", content=b"x", headers={**JSON, "Content-Encoding": "gzip"}), 415
    )


def test_a_wrong_method_is_a_405_and_a_wrong_path_a_404(http: httpx.Client) -> None:
    for path in ROUTES:
        for method in ("GET", "PUT", "DELETE"):
            is_error(http.request(method, path), 405)
    is_error(http.post("/health", json={}), 405)
    is_error(http.get("/nowhere"), 404)


def test_a_body_past_the_limit_is_a_413(http: httpx.Client) -> None:
    big = json.dumps({"text": "a" * LIMIT}).encode()
    is_error(http.post("/generate", content=big, headers=JSON), 413)

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(big), 1 << 16):
            yield big[at : at + (1 << 16)]

    is_error(http.post("/generate", content=chunks(), headers=JSON), 413)


# -- values: rows 7-16 ----------------------------------------------------------------------------


def sampling(**params: Any) -> dict[str, Any]:
    return {"text": "a", "sampling_params": params}


VALUES: list[tuple[str, dict[str, Any], str | None]] = [
    ("/generate", {}, "text"),
    ("/generate", {"text": ""}, "prompt"),
    ("/generate", {"text": []}, "text"),
    ("/generate", {"text": [""]}, "prompt"),
    ("/generate", {"input_ids": []}, "prompt"),
    ("/generate", {"input_ids": [[]]}, "prompt"),
    ("/generate", {"text": "a", "input_ids": [1]}, "text"),
    ("/generate", {"text": 3}, "text"),
    ("/generate", {"input_ids": [1.5]}, "input_ids"),
    ("/generate", {"input_ids": [True]}, "input_ids"),
    ("/generate", {"input_ids": [-1]}, "prompt"),
    ("/generate", {"input_ids": [10**6]}, "prompt"),
    ("/generate", {"input_ids": [2**63]}, "input_ids"),
    ("/generate", {"input_ids": [1] * 1025}, "prompt"),
    ("/generate", sampling(max_new_tokens=-1), "max_new_tokens"),
    ("/generate", sampling(min_new_tokens=200), "min_new_tokens"),
    ("/generate", sampling(n=10**9), "n"),
    ("/generate", sampling(n=0), "n"),
    ("/generate", sampling(logit_bias={"1000000": 1}), "logit_bias"),
    ("/generate", sampling(logit_bias={"5.5": 1}), "logit_bias"),
    ("/generate", sampling(logit_bias={" 5": 1}), "logit_bias"),
    ("/generate", sampling(logit_bias={str(i): 1 for i in range(10**4)}), "logit_bias"),
    ("/generate", sampling(stop_token_ids=[10**6]), "stop_token_ids"),
    ("/generate", sampling(stop_token_ids=[-1]), "stop_token_ids"),
    ("/generate", sampling(stop=["x"] * 10**5), "stop"),
    ("/generate", sampling(stop=["x" * 10**5]), "stop"),
    ("/generate", sampling(stop=""), "stop"),
    ("/generate", sampling(stop_regex=""), "stop_regex"),
    ("/generate", sampling(temperature=-1), "temperature"),
    ("/generate", sampling(top_p=0), "top_p"),
    ("/generate", sampling(top_k=0), "top_k"),
    ("/generate", sampling(sampling_seed=2**64), "seed"),
    ("/generate", sampling(tempreture=1), "tempreture"),
    ("/generate", {"text": "a", "return_logprob": True, "top_logprobs_num": 10**6}, "top_logprobs"),
    ("/generate", {"text": "a", "return_logprob": True, "logprob_start_len": 5},
     "logprob_start_len"),
    ("/generate", {**sampling(n=8, max_new_tokens=900), "return_logprob": True,
                   "top_logprobs_num": 128, "token_ids_logprob": [1] * 1000}, "max_new_tokens"),
    ("/generate", {"text": ["a", "b"], "rid": ["x"]}, "rid"),
    ("/v1/completions", {}, "prompt"),
    ("/v1/completions", {"prompt": ""}, "prompt"),
    ("/v1/completions", {"prompt": []}, "prompt"),
    ("/v1/completions", {"prompt": {"a": 1}}, "prompt"),
    ("/v1/completions", {"prompt": [1, "a"]}, "prompt"),
    ("/v1/completions", {"prompt": "a", "max_tokens": -1}, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "logprobs": 10**6}, "logprobs"),
    ("/v1/completions", {"prompt": "a", "best_of": 10**9}, "best_of"),
    ("/v1/completions", {"prompt": ["a"] * 5000}, "n"),
    ("/v1/completions", {"prompt": "a", "n": "two"}, "n"),
    ("/v1/chat/completions", {}, None),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "wizard", "content": "a"}]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages"),
    ("/v1/chat/completions", {"messages": ["hello"]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
     "messages"),
    ("/v1/chat/completions",
     {"messages": [{"role": "user", "content": "a"}], "max_tokens": 0}, "max_tokens"),
]  # fmt: skip


@pytest.mark.slow
def test_values_out_of_range_are_named(served: Served, http: httpx.Client) -> None:
    before = served.client.stats()["received"]
    for path, body, param in VALUES:
        error = is_error(http.post(path, json=body), 400)
        assert error["param"] == param, (body, error)
        is_error(http.post(path, json={**body, "stream": True}), 400)  # before it begins
    assert served.client.stats()["received"] == before + 0


ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.5, 1e300, 2**31, 2**63, -(2**63), 2**200, "", "a", "\x00",
    "🙂", "0", [], [[]], [None], [0], [-1], ["a"], [""], [[1, 2]], [{}], {}, {"a": 1},
    {"type": "x"}, {"1": 1}, {"-1": 0.5}, [1, "a"], ["a"] * 200, [2**40], [[2**40]], {"n": 2},
]  # fmt: skip
BASES: dict[str, tuple[type, dict[str, Any]]] = {
    "/generate": (GenerateRequest, {"text": "a", "sampling_params": {"max_new_tokens": 2}}),
    "/v1/completions": (CompletionBody, {"prompt": "a", "max_tokens": 2}),
    "/v1/chat/completions": (
        ChatRequest,
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    ),
    "/v1/embeddings": (EmbeddingBody, {"input": ["a", "b"]}),
    "/encode": (EncodeRequest, {"text": "a"}),
    "/classify": (ClassifyRequest, {"input": "a"}),
    "/v1/score": (ScoreRequest, {"query": "a", "items": ["b"], "label_token_ids": [1]}),
    "/v1/rerank": (RerankRequest, {"query": "a", "documents": ["b", "c"]}),
    "/apply-template": (TemplateBody, {"messages": [{"role": "user", "content": "a"}]}),
    "/tokenize": (TokenizeBody, {"prompt": "a"}),
    "/detokenize": (DetokenizeBody, {"tokens": [1]}),
    "/abort_request": (AbortBody, {"rid": "a"}),
    "/open_session": (OpenSession, {"capacity_of_str_len": 8, "timeout": 9.0}),
    "/close_session": (CloseSession, {"session_id": "a"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", BASES)
def test_odd_values_never_break_the_server(http: httpx.Client, path: str) -> None:
    """Fields with odd values, alone and in pairs (a seeded sample): a reply or a 4xx."""
    kind, base = BASES[path]
    names = list(kind.__struct_fields__)  # type: ignore[attr-defined]
    bodies = [{**base, name: value} for name in names for value in ODD if name != "max_tokens"]
    draw = random.Random(path)
    if path == "/generate":
        params = [*PARAMETERS, "regex", "sampling_seed"]
        bodies += [
            {"text": "a", "sampling_params": {"max_new_tokens": 2, name: value}}
            for name in params
            for value in ODD
            if name != "max_new_tokens"
        ]
    for _ in range(50):
        first, second = draw.choice(names), draw.choice(names)
        bodies.append({**base, first: draw.choice(ODD), second: draw.choice(ODD), "max_tokens": 2})
    for body in draw.sample(bodies, min(120, len(bodies))):
        reply = http.post(path, json=body)
        if reply.status_code != 200:
            unknown = {404} if "resume" in body else set()
            assert reply.status_code in {400, 403, 429} | unknown, (body, reply.text)
            is_error(reply, reply.status_code)


LONG_TEXT = "\x00é" * 100_000
LONG_VALUES: list[Any] = [LONG_TEXT, {LONG_TEXT: 1}, [LONG_TEXT], [{"type": LONG_TEXT}]]


@pytest.mark.slow
@pytest.mark.parametrize("path", BASES)
def test_errors_repeat_little_of_what_was_sent(http: httpx.Client, path: str) -> None:
    """Values and names of 100,000 characters that become more by escapes."""
    kind, base = BASES[path]
    bodies: list[dict[str, Any]] = [
        {**base, name: value}
        for name in kind.__struct_fields__  # type: ignore[attr-defined]
        for value in LONG_VALUES
    ]
    bodies += [{**base, "messages": [{"role": LONG_TEXT, "content": "a"}]}]
    if path == "/generate":
        names = [*PARAMETERS, "regex", "ebnf", "json_schema", LONG_TEXT]
        bodies += [{**base, "sampling_params": {n: v}} for n in names for v in LONG_VALUES]
    refused = 0
    for body in bodies:
        reply = http.post(path, json=body)
        if reply.status_code != 200:
            is_error(reply, reply.status_code)
            assert len(reply.content) < 20_000, body.keys()
            refused += 1
    assert refused > 2


def test_headers_and_broken_bodies_are_repeated_in_part(http: httpx.Client) -> None:
    long = "x" * 60_000
    replies = [
        http.post("/generate", content=b"{}", headers={"Content-Type": f"text/{long}"}),
        http.post("/generate", content=b"{}", headers={
            "Content-Type": f"application/json; charset={long}"}),
        http.post("/generate", content=json.dumps({"a": 1})[:-1] + f', "{long}": 1, "{long}": 2}}',
                  headers={"Content-Type": "application/json"}),
        http.get(f"/v1/models/{long}"),
    ]  # fmt: skip
    for reply in replies:
        is_error(reply, reply.status_code)
        assert 400 <= reply.status_code < 500
        assert len(reply.content) < 4000
    model = {"model": long, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    error = is_error(http.post("/v1/chat/completions", json={**model, "stream": True}), 400)
    assert error["message"] == "model has 60000 characters; at most 1024."


def test_the_end_of_a_long_message_stays() -> None:
    error = RequestError("begin " + "x" * 10_000 + " do this instead.", "y" * 1000)
    assert error.message.startswith("begin x")
    assert error.message.endswith("x do this instead.")
    assert len(error.message) < 2100
    assert len(error.param or "") < 110
    assert str(error) == error.message


def test_a_long_prompt_names_both_numbers(http: httpx.Client) -> None:
    error = is_error(http.post("/generate", json={"input_ids": [1] * 1500}), 400)
    assert "1500" in error["message"]
    assert "1024" in error["message"]
    assert error["code"] == "context_length_exceeded"


def test_overflow_is_cut_to_the_context(http: httpx.Client) -> None:
    params = {"max_new_tokens": 2**63, "ignore_eos": True, "temperature": 0}
    found = http.post("/generate", json={"input_ids": [5] * 1000, "sampling_params": params}).json()
    assert found["meta_info"]["completion_tokens"] == 24
    assert found["meta_info"]["finish_reason"] == {"type": "length", "length": 24}


def test_an_invalid_stop_regex_is_a_400(http: httpx.Client) -> None:
    for pattern in ("(", "[a", "(?<=a)b", r"(a)\1"):
        is_error(http.post("/generate", json=sampling(stop_regex=pattern)), 400)


def test_a_stop_regex_beyond_its_size_is_a_400(http: httpx.Client) -> None:
    """Sixteen of these stopped the engine for minutes."""
    patterns = [rf"[a-m][^Z]{{900}}Z{number}" for number in range(16)]
    error = is_error(http.post("/generate", json=sampling(stop_regex=patterns)), 400)
    assert "RE2 instructions" in error["message"]
    assert "16384" in error["message"]


def test_a_request_may_not_bring_a_template(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ 1 }}"}
    is_error(http.post("/v1/chat/completions", json=body), 403)


# -- leaving and flooding: rows 33, 35, 36 --------------------------------------------------------

LONG = {"max_new_tokens": 900, "ignore_eos": True}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "body",
    [
        {"text": "a", "sampling_params": LONG},
        {"text": "a", "sampling_params": {**LONG, "n": 3}},
        {"text": ["a", "b"], "sampling_params": LONG},
    ],
)
def test_a_client_that_leaves_while_decoding_is_aborted(
    served: Served, http: httpx.Client, stream: bool, body: dict[str, Any]
) -> None:
    served.worker.seconds = 0.005
    before = served.client.stats()
    connection = served.open({**body, "stream": stream})
    until(lambda: served.client.stats()["generated_tokens"] > before["generated_tokens"] + 5)
    connection.close()
    after = served.client.idle()
    assert after["finished"] - before["finished"] == int("n" in body["sampling_params"])  # the fill
    assert after["aborted"] > before["aborted"]
    assert after["generated_tokens"] - before["generated_tokens"] < 900


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_the_queue_or_the_prefill(
    served: Served, http: httpx.Client, stream: bool
) -> None:
    served.worker.seconds = 0.02
    before = served.client.stats()
    running = [served.open({"text": "a", "sampling_params": LONG}) for _ in range(4)]
    until(lambda: served.client.stats()["running"] == 4)
    queued = served.open({"text": "b", "sampling_params": LONG, "stream": stream})
    until(lambda: served.client.stats()["waiting"] == 1)
    queued.close()
    until(lambda: served.client.stats()["waiting"] == 0)
    for connection in running:
        connection.close()
    after = served.client.idle()
    assert after["aborted"] - before["aborted"] == 5
    served.worker.seconds = 0.5  # the next pass is the prefill
    filling = served.open({"input_ids": [9] * 500, "sampling_params": LONG, "stream": stream})
    until(lambda: served.client.stats()["running"] == 1)
    filling.close()
    assert served.client.idle()["aborted"] - before["aborted"] == 6


@pytest.mark.slow
def test_a_flood_gets_429_and_who_is_in_finishes(served: Served, http: httpx.Client) -> None:
    served.worker.seconds = 0.3  # until one is refused
    body = {"text": "a", "sampling_params": {**LONG, "max_new_tokens": 30, "temperature": 0}}

    def ask(_: int) -> httpx.Response:
        reply = httpx.post(f"{served.url}/generate", json=body, timeout=60)
        if reply.status_code == 429:
            served.worker.seconds = 0.003
        return reply

    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        replies = list(pool.map(ask, range(30)))
    refused = [reply for reply in replies if reply.status_code == 429]
    served_ = [reply.json()["text"] for reply in replies if reply.status_code == 200]
    assert len(refused) + len(served_) == 30
    assert len(served_) >= 8
    assert len(set(served_)) == 1
    assert refused
    for reply in refused:
        assert is_error(reply, 429)["code"] == "queue_full"
        assert int(reply.headers["Retry-After"]) >= 1


@pytest.mark.slow
def test_who_is_let_in_waits_for_no_more_than_the_queue(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in the server, not timed: how many of a flood's requests end while one waits."""
    served.worker.seconds = 0.3  # until one is refused
    limit, body = 4 + 8, {"text": "a", "sampling_params": {**LONG, "max_new_tokens": 8}}
    finish, ended, waits = served.state.runtime.finish, 0, []

    async def counted(*args: Any) -> Any:
        nonlocal ended
        before = ended
        result = await finish(*args)
        ended += 1
        waits.append(ended - before)
        return result

    monkeypatch.setattr(served.state.runtime, "finish", counted)
    with (
        httpx.Client(base_url=served.url, timeout=60) as flood,
        concurrent.futures.ThreadPoolExecutor(30) as pool,
    ):

        def ask(_: int) -> int:
            code = flood.post("/generate", json=body).status_code
            if code == 429:
                served.worker.seconds = 0.002
            return code

        codes = list(pool.map(ask, range(300)))
    assert set(codes) == {200, 429}
    assert len(waits) == codes.count(200) >= limit
    assert sorted(waits)[int(len(waits) * 0.99)] <= limit + 4  # the queue, and what runs behind it


def test_flush_is_refused_under_traffic(served: Served, http: httpx.Client) -> None:
    served.worker.seconds = 0.01
    with served.open({"text": "a", "sampling_params": LONG}):
        until(lambda: served.client.stats()["running"] == 1)
        assert is_error(http.post("/flush_cache"), 400)["code"] == "busy"
    served.client.idle()
    assert http.post("/flush_cache").status_code == 200


def test_abort_by_rid_and_all(served: Served, http: httpx.Client) -> None:
    served.worker.seconds = 0.01
    http.post("/abort_request", json={"abort_all": True})  # contexts that other tests have parked

    def ask(rid: str, stream: bool = False) -> dict[str, Any]:
        body = {"text": rid, "rid": rid, "sampling_params": LONG, "stream": stream}
        reply = httpx.post(f"{served.url}/generate", json=body, timeout=60)
        assert reply.status_code == 200
        return json.loads(reply.text.split("data: ")[-2]) if stream else reply.json()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, rid, rid == "s") for rid in ("x", "y", "s")]
        until(lambda: served.client.stats()["running"] == 3)
        assert http.post("/abort_request", json={"rid": "y"}).json()["aborted"] == 1
        found = asked[1].result()
        assert found["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(found["output_ids"]) < 900
        assert not asked[0].done()
        assert http.post("/abort_request", json={"abort_all": True}).json()["aborted"] == 2
        for future in (asked[0], asked[2]):
            assert future.result()["meta_info"]["finish_reason"]["type"] == "abort"
    assert http.post("/abort_request", json={"rid": "nobody"}).json()["aborted"] == 0
    is_error(http.post("/abort_request"), 400)


# -- the key: row 31 ------------------------------------------------------------------------------

KEYS = ["secret", "ключ-密钥", "clé"]


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_the_key_guards_every_route(tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    config = Config.of(api_key=key)
    with serve_text(tmp_path_factory.mktemp("tokenizer"), config) as server:
        routes: list[Any] = server.app.routes
        paths = {route.path.replace("{name:path}", "x") for route in routes} - PROBES
        assert {"/health", "/metrics", "/openapi.json", "/generate"} <= paths
        wrong: list[dict[str, bytes]] = [
            {},
            {"Authorization": b""},
            {"Authorization": b"Bearer"},
            {"Authorization": b"Bearer " + key.encode()[:-1]},
            {"Authorization": b"Bearer " + key.encode() + b"x"},
            {"Authorization": b"Basic " + key.encode()},
            {"Authorization": key.encode()},
            {"Authorization": b"Bearer \xff\xfe" + key.encode()},
            {"Authorization": b"Bearer " + b"k" * 60_000},
        ]
        with httpx.Client(base_url=server.url, timeout=60) as http:
            for path in [*sorted(paths), "/nowhere", "/v1/../health", "//health"]:
                for method in ("GET", "POST", "OPTIONS"):
                    assert http.request(method, path).status_code == 401
            for headers in wrong:
                is_error(http.get("/health", headers=headers), 401)  # type: ignore[arg-type]
        assert server.client.get("/health").status_code == 200
        assert server.client.golden()
        assert key not in server.client.get("/get_server_info").text


def test_without_a_key_any_header_is_accepted(http: httpx.Client) -> None:
    assert http.get("/health", headers={"Authorization": "Bearer anything"}).status_code == 200
