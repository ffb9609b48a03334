"""The matrix: each row of docs/reliability.md against servers as users start them.

After each row all is as before it: the processes, their memory, descriptors and threads, the KV
memory, the counts, and the golden answer; and everything that was sent has been answered once.
"""

from __future__ import annotations

import base64
import concurrent.futures
import itertools
import json
import re
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from helpers.apis import APIS, Api, user
from helpers.http_server import Client
from helpers.launched import best_model, gone, launched
from helpers.matrix import Bench, error_of
from helpers.paths import ROOT
from helpers.seeds import LONG as LONG_RUN
from helpers.waiting import until
from sglang.ir.sampling import PARAMETERS
from sglang.srt.web.connection.guard import PROBES
from sglang.srt.web.routes import ROUTES

Json = dict[str, Any]

RUNNING, QUEUED, LATE, TOKENS = 10, 20, 2.5, 24576
FLAGS = [
    "--max-total-tokens", str(TOKENS),
    "--max-running-requests", str(RUNNING), "--max-queued-requests", str(QUEUED),
    "--header-timeout", str(LATE), "--body-timeout", str(LATE),
    "--stream-write-timeout", str(LATE),
]  # fmt: skip
JSON = {"Content-Type": "application/json"}
LONG = {"max_tokens": 3000, "ignore_eos": True, "temperature": 0}
SHORT: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True, "temperature": 0}

# Every route that takes a body, and a body that it likes.
BASES: dict[str, Json] = {
    **{path: api.body("a", **SHORT) for path, api in APIS.items()},
    "/v1/responses/input_tokens": {"input": "a"},
    "/v1/messages/count_tokens": {"messages": user("a"), "max_tokens": 2},
    "/encode": {"text": "a"},
    "/v1/embeddings": {"input": "a"},
    "/v1/score": {"query": "a", "items": ["b"], "label_token_ids": [1]},
    "/v1/rerank": {"query": "a", "documents": ["b", "c"]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": user("a")},
    "/abort_request": {"rid": "nobody"},
}
ALIASES = {
    "/score": "/v1/score", "/v2/rerank": "/v1/rerank", "/rerank": "/v1/rerank",
    "/v1/tokenize": "/tokenize", "/v1/detokenize": "/detokenize",
}  # fmt: skip
PATHS = sorted({re.sub(r"\{.*?\}", "x", route.path) for route in ROUTES})
GUARDED = [path for path in PATHS if path not in PROBES]  # by key and origin
BODIES = {route.path: route.body for route in ROUTES if route.body is not None}
SAMPLING = {*PARAMETERS, "regex", "ebnf", "json_schema", "structural_tag"}
COUNTING = ("/v1/responses/input_tokens", "/v1/messages/count_tokens")  # only read prompts
PROMPTS = {"text", "input_ids", "prompt", "input", "messages", "tokens", "documents", "items"}
FOREIGN = {"messages", "prompt", "text", "max_tokens", "max_completion_tokens", "response_format"}


def fields(path: str) -> set[str]:
    """Fields that a route reads of its body, in the meaning that other routes give them."""
    own = {*BODIES[path].__struct_fields__}  # type: ignore[attr-defined]
    if path.startswith("/v1/responses"):
        own -= FOREIGN
    if path in COUNTING:
        return own & PROMPTS
    return own | SAMPLING if path == "/generate" else own


def product(table: dict[str, list[Any]]) -> Iterator[tuple[str, str, Json]]:
    """Each value in each route that takes its field, streamed and not: path, field, body."""
    for path, base in BASES.items():
        for name in sorted(fields(path) & table.keys()):
            for value in table[name]:
                body = json.loads(json.dumps(base))
                if path == "/generate" and name in SAMPLING:
                    body["sampling_params"][name] = value
                else:
                    body[name] = value
                if name == "input_ids":
                    del body["text"]
                yield path, name, body
                if path in APIS:
                    yield path, name, {**body, "stream": True}


def refused(bench: Bench, table: dict[str, list[Any]], words: str = "") -> int:
    """Assert that each is a 400 in its API's form, with ``words``; returns how many."""
    count = 0
    for path, name, body in product(table):
        reply = bench.post(path, body)
        assert reply.status_code == 400, (path, name, str(body)[:200], reply.text[:500])
        assert re.search(words, error_of(reply, 400)), (path, name, reply.text)
        count += 1
    return count


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Results, in order."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def warm(bench: Bench) -> None:
    """Have everything made that is made on first use."""
    for path, body in BASES.items():
        assert bench.post(path, body).status_code == 200, path
    for api in APIS.values():
        api.text(bench.post(api.path, api.body("a<|im_end|>", True, **SHORT)), True)
    patterns = [
        api.body("a", regex=f"[{i}{i + 1}]", max_tokens=4)
        for i in range(6)
        for api in APIS.values()
    ]
    paths = itertools.cycle(APIS)
    at_once([partial(bench.post, p, b) for p, b in zip(paths, patterns)])
    for path in ("/openapi.json", "/docs", "/live", "/explain/x", "/v1/models", "/"):
        bench.http.get(path)
    bench.post("/tokenize", {"prompt": ["a b " * 3000] * 8})
    info = bench.http.get("/get_model_info").json()
    ids = [5] * (min(info["context_length"], info["capacity"]) - 2)  # the largest passes
    api = APIS["/generate"]
    api.text(bench.post(api.path, {**api.body("", **SHORT), "text": None, "input_ids": ids}))


PAGE = ROOT / "docs/reliability.md"


def test_the_page_tells_every_row() -> None:
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 41)]
    here = {name for name in globals() if re.match(r"test_\d\d_", name)}
    told = [re.findall(r"`(test_\d\d_\w+)`", row) for _, row in rows]
    assert {name for names in told for name in names} == here
    for (number, row), names in zip(rows, told):
        assert names or "`test/" in row, number
        for name in names:
            first, last = re.match(r"test_(\d\d)(?:_to_(\d\d))?", name).groups()  # type: ignore
            assert int(first) <= int(number) <= int(last or first)


# -- the server of most rows ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def main(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    batches = ["--batch-dir", str(tmp_path_factory.mktemp("batches"))]
    with launched([*best_model(tmp_path_factory.mktemp("model")), *FLAGS, *batches]) as server:
        bench = Bench(server)
        warm(bench)
        bench.settle()
        yield bench
        server.process.terminate()
        assert server.wait_end() == 0


@pytest.fixture
def bench(main: Bench) -> Iterator[Bench]:
    with main.row() as found:
        yield found


BROKEN = {
    "cut": b'{"text": "a"',
    "no object": b"[1]",
    "duplicate keys": b'{"model": "a", "model": "b"}',
    "NaN": b'{"model": NaN}',
    "1e999": b'{"model": 1e999}',
    "10,000 lists": b'{"model": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "10,000 objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "never closed": b"[" * 100_000,
    "trailing": b"{} {}",
}


def test_01_broken_json(bench: Bench) -> None:
    for path in BODIES:
        for name, data in BROKEN.items():
            reply = bench.http.post(path, content=data, headers=JSON)
            assert reply.status_code == 400, (path, name)
            error_of(reply, 400)


def test_02_large_bodies(bench: Bench) -> None:
    most = bench.http.get("/get_server_info").json()["max_body_bytes"]
    for path in BODIES:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with bench.connect() as raw:  # announced, and not one byte of it sent
            raw.sendall(f"{head}Content-Length: {most + 1}\r\n\r\n".encode())
            assert raw.recv(12) == b"HTTP/1.1 413"
            bench.sent += 1
    for path in APIS:
        chunks = itertools.repeat(b"[" * (1 << 20), most // (1 << 20) + 1)
        error_of(bench.http.post(path, content=chunks, headers=JSON), 413)
        bomb = {**JSON, "Content-Encoding": "gzip"}
        error_of(bench.http.post(path, content=b"\x1f\x8b" * 100, headers=bomb), 415)


def test_03_large_heads(bench: Bench) -> None:
    for head in (b"GET /health HTTP/1.1\r\nX: ", b"GET /?", b"POST /generate HTTP/1.1\r\n"):
        with bench.connect() as raw:
            raw.sendall(head)
            more = b"a: b\r\n" * 1000 if head.endswith(b"\n") else b"x" * 6000
            try:
                for _ in range(10 * 175):
                    raw.sendall(more)
            except OSError:  # closed: it read no more
                continue
            assert raw.recv(12) == b"HTTP/1.1 431"


def test_04_slow_clients(bench: Bench) -> None:
    half = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    begun = [half, half + b"Content-Length: 100\r\n\r\n{", b"G"]
    slow = [bench.connect() for _ in range(5) for _ in begun]
    bench.sent += 5  # a head with a part of a body reaches the route
    for raw, data in zip(slow, itertools.cycle(begun)):
        raw.sendall(data)
    for api in APIS.values():  # others are served
        api.text(bench.post(api.path, api.body("a", **SHORT)))
    for raw in slow:
        assert raw.recv(12) == b"HTTP/1.1 408"
        raw.close()


def test_05_wrong_types_and_methods(bench: Bench) -> None:
    for path, kind in itertools.product(BODIES, ("text/plain", "multipart/form-data", "")):
        headers = {"Content-Type": kind} if kind else {}
        error_of(bench.http.post(path, content=b"{}", headers=headers), 415)
    for path in PATHS:
        there = {
            r.method for r in ROUTES if re.fullmatch(re.sub(r"\{.*?\}", "[^/]+", r.path), path)
        }
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - there:
            reply = bench.http.request(method, path)
            assert reply.status_code == 405, (method, path)
            error_of(reply, 405)
            assert set(reply.headers["allow"].split(", ")) <= {*there, "HEAD"}
    for path in ("/nowhere", "/v1/nowhere", "/v1/messages/nowhere"):
        error_of(bench.post(path, {}), 404)


def test_06_odd_texts(bench: Bench) -> None:
    for path in BODIES:
        for data in (b'{"model": "\xff"}', b'{"model": "\\ud800"}', b'{"\\udfff": 1}'):
            error_of(bench.http.post(path, content=data, headers=JSON), 400)
    text = "a\x00b \ud83d\ude42".encode("utf-16", "surrogatepass").decode("utf-16")
    count = bench.post("/tokenize", {"prompt": text}).json()["count"]
    escaped = json.dumps({"text": text, "sampling_params": SHORT_NATIVE})  # surrogate pairs
    reply = bench.http.post("/generate", content=escaped, headers=JSON)
    assert reply.json()["meta_info"]["prompt_tokens"] == count
    for api in APIS.values():
        api.text(bench.post(api.path, api.body(text, **SHORT)))


SHORT_NATIVE = {"max_new_tokens": 4, "temperature": 0}


# -- values ---------------------------------------------------------------------------------------

NO_MESSAGES: list[Any] = [[], [{}], [{"role": "user"}], ["a"], [{"role": "x", "content": "a"}]]


def test_07_empty_prompts(bench: Bench) -> None:
    assert refused(bench, {"messages": NO_MESSAGES}) > 20
    for path, body in (
        ("/generate", {"text": ""}), ("/generate", {"text": []}), ("/generate", {"text": [""]}),
        ("/generate", {"input_ids": []}), ("/generate", {"input_ids": [[]]}), ("/generate", {}),
        ("/v1/completions", {"prompt": ""}), ("/v1/completions", {"prompt": []}),
        ("/v1/completions", {"prompt": [[]]}), ("/v1/embeddings", {"input": ""}),
        ("/v1/embeddings", {"input": []}), ("/v1/embeddings", {}), ("/encode", {"text": ""}),
        ("/encode", {}), ("/v1/responses", {}), ("/v1/responses", {"input": []}),
        ("/v1/score", {}), ("/v1/score", {"query": "a", "items": [], "label_token_ids": [1]}),
        ("/v1/score", {"query": "", "items": [""], "label_token_ids": [1]}),
        ("/v1/score", {"text_1": "", "text_2": ""}), ("/v1/rerank", {}),
        ("/v1/rerank", {"query": "", "documents": ["a"]}),
        ("/v1/rerank", {"query": "a", "documents": []}),
        ("/v1/rerank", {"query": "a", "documents": [""]}), ("/tokenize", {}),
        ("/detokenize", {}), ("/apply-template", {}),
    ):  # fmt: skip
        error_of(bench.post(path, body), 400)


def test_08_prompts_past_the_context(bench: Bench) -> None:
    most = bench.http.get("/get_model_info").json()["context_length"]
    words, ids = "z q " * most, [5] * (most + 7)
    many: dict[str, list[Any]] = {
        "text": [words], "input_ids": [ids], "messages": [user(words)], "documents": [[words]],
        "items": [[words]], "query": [words],
    }  # fmt: skip
    for path, name, body in product({**many, "prompt": [words, ids], "input": [words, ids]}):
        if path in ("/tokenize", "/apply-template", *COUNTING):
            continue  # as much as there is
        if isinstance(body[name], list) and path.startswith("/v1/responses"):
            continue  # items, not ids
        reply = bench.post(path, body)
        assert reply.status_code == 400, (path, name, reply.text[:300])
        numbers = {int(n) for n in re.findall(r"\d+", error_of(reply, 400))}
        assert most in numbers, (path, name, reply.text)
        assert max(numbers) > most


def test_09_limits_of_length(bench: Bench) -> None:
    names = ("max_tokens", "max_new_tokens", "max_completion_tokens", "max_output_tokens")
    refused(bench, {name: [-1, -(2**63)] for name in names})
    refused(bench, {"max_completion_tokens": [0], "max_output_tokens": [0]})
    refused(bench, {"min_tokens": [10**6], "min_new_tokens": [10**6]})
    for api in APIS.values():
        body = api.body("a", max_tokens=2**63, regex="[0-9]{3}")
        assert len(api.text(bench.post(api.path, body))) == 3
        empty = bench.post(api.path, api.body("a", max_tokens=0))
        if api.path in ("/v1/chat/completions", "/v1/responses"):
            error_of(empty, 400)
        else:
            assert not empty.json().get("text")
    most = bench.http.get("/get_model_info").json()["context_length"]
    cut = {"max_new_tokens": 2**63, "ignore_eos": True}
    body = {"input_ids": [5] * (most - 3), "sampling_params": cut}
    assert bench.post("/generate", body).json()["meta_info"]["completion_tokens"] == 3


def test_10_many_completions(bench: Bench) -> None:
    refused(bench, {"n": [0, -1, 129, 10**9, 2**64], "best_of": [0, 129, 10**9]})
    refused(bench, {"n": [100]}, "--max-queued-requests|n is 100")
    for path, name in (("/v1/completions", "prompt"), ("/v1/embeddings", "input")):
        error_of(bench.post(path, {name: ["a"] * 5000}), 400)
    error_of(bench.post("/v1/rerank", {"query": "a", "documents": ["b"] * 5000}), 400)


def test_11_many_logprobs(bench: Bench) -> None:
    refused(bench, {"logprobs": [10**6], "top_logprobs": [-1, 129, 10**6]})
    asked: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0}
    for more in ({"top_logprobs_num": 10**6}, {"token_ids_logprob": list(range(3000))}):
        error_of(bench.post("/generate", {"text": "a", **asked, **more}), 400)
    long: dict[str, Any] = {"text": ["a b " * 1000] * 9, **asked, "top_logprobs_num": 128}
    error_of(bench.post("/generate", long), 400)


def test_12_ids_out_of_the_vocabulary(bench: Bench) -> None:
    size = bench.http.get("/get_model_info").json()["vocab_size"]
    wrong = [-1, size, 2**31, 2**63, -(2**63)]
    ids: list[Any] = [[1, each] for each in wrong]
    refused(bench, {"input_ids": ids, "tokens": ids, "label_token_ids": ids})
    for each in ids:
        error_of(bench.post("/v1/completions", {"prompt": each}), 400)
        error_of(bench.post("/v1/embeddings", {"input": [each]}), 400)
        body = {"text": "a", "return_logprob": True, "token_ids_logprob": each}
        error_of(bench.post("/generate", body), 400)


def test_13_biases_and_stops_out_of_the_vocabulary(bench: Bench) -> None:
    size = bench.http.get("/get_model_info").json()["vocab_size"]
    wrong = [-1, size, 10**6, 2**63]
    refused(bench, {"logit_bias": [{str(each): 1} for each in wrong]}, "logit_bias|Invalid|int")
    refused(bench, {"logit_bias": [{"1": 1e9}, {"a": 1}]})
    refused(bench, {"stop_token_ids": [[each] for each in wrong]})


def test_14_many_entries(bench: Bench) -> None:
    many, count = ["x"] * 10**5, 10**5
    refused(bench, {
        "stop": [many], "stop_sequences": [many], "bad_words": [many], "stop_regex": [many],
        "stop_token_ids": [[1] * count], "logit_bias": [{str(i): 1 for i in range(count // 5)}],
    })  # fmt: skip


def test_15_numbers_out_of_range(bench: Bench) -> None:
    refused(bench, {
        "temperature": [-1, 1e300], "top_p": [0, -1, 1.5], "top_k": [0, -2], "min_p": [-1, 2],
        "seed": [2**64, -(2**64)], "frequency_penalty": [3], "presence_penalty": [-3],
        "repetition_penalty": [0, 1e9], "priority": [2**70],
    })  # fmt: skip
    for path in APIS:
        for name in ("temperature", "top_p"):
            body = json.dumps(BASES[path])[:-1] + f', "{name}": NaN}}'
            error_of(bench.http.post(path, content=body, headers=JSON), 400)


def test_16_stops(bench: Bench) -> None:
    refused(
        bench,
        {"stop": ["", ["a", ""]], "stop_sequences": [[""]], "stop_regex": ["", "(", "(?<=a)b"]},
    )
    for api in APIS.values():
        for stream in (False, True):
            for stop, kept in (("he ele", "t"), ("本", "the elephant 日"), ("\n", WRITTEN)):
                body = api.body("a", stream, regex=WRITTEN, stop=[stop], max_tokens=60)
                found = api.text(bench.post(api.path, body), stream)
                assert found == kept, (api.path, stream, stop)


WRITTEN = "the elephant 日本語"


# -- constraints and tools ------------------------------------------------------------------------


def test_17_invalid_constraints(bench: Bench) -> None:
    schemas: list[Any] = [{"type": "strng"}, {"$ref": "#/nowhere"}, "{", 3]
    refused(bench, {
        "regex": ["(", r"(a)\1", "[^\\s\\S]"], "ebnf": ["root ::= (", "root ::= root"],
        "json_schema": schemas, "structural_tag": ["{", {"type": "x"}], "guided_json": schemas,
        "response_format": [{"type": "x"}, {"type": "json_schema"}], "guided_choice": [[]],
        "output_config": [{"format": {"type": "json_schema", "schema": s}} for s in schemas],
    })  # fmt: skip
    for schema in schemas:
        body = {
            **BASES["/v1/responses"],
            "text": {"format": {"type": "json_schema", "schema": schema}},
        }
        error_of(bench.post("/v1/responses", body), 400)


NAMES = [[f"a{i}{j}" for j in range(8)] for i in range(8)]
CROSSED = {
    "allOf": [{"oneOf": [{"type": "object", "required": [a]} for a in row]} for row in NAMES]
}
CIRCLE = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
PATTERNS = ["(((.{1,30}){1,30}){1,30})", r"(?:(?=.*a.{9})(?=.*x.{9})(?=.*y.{9}).){1,30}"]


def waits(process: psutil.Process) -> bool:
    """Whether it has nothing to do, not even to start."""
    for _ in range(10):
        if process.status() != psutil.STATUS_SLEEPING:
            return False
        time.sleep(0.03)
    return True


def test_18_explosive_constraints(bench: Bench) -> None:
    refused(bench, {"regex": PATTERNS, "json_schema": [CROSSED, CIRCLE]})
    before = bench.http.stats()["grammar_kills"]
    planners = bench.server.engine().children()
    assert len(planners) == 2
    until(lambda: all(map(waits, planners)))  # one that took too long was begun anew
    for planner in planners:
        planner.suspend()  # no constraint's fault
    with concurrent.futures.ThreadPoolExecutor() as pool:
        late = [
            pool.submit(bench.post, path, APIS[path].body("a", regex=f"late|{path}", **SHORT))
            for path in ("/generate", "/v1/messages")
        ]
        while not all(reply.done() for reply in late):
            assert bench.http.get("/health").status_code == 200
            assert bench.http.golden() == bench.golden
    for reply in late:
        assert reply.result().status_code == 200, reply.result().text
    assert bench.http.stats()["grammar_kills"] == before
    assert not set(planners) & set(bench.server.engine().children())
    for api in APIS.values():
        digits = bench.post(api.path, api.body("a", regex="[0-9]{2}", max_tokens=9))
        assert api.text(digits).isdigit()


def test_19_keywords_that_cannot_be_enforced(bench: Bench) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    form = {"type": "json_schema", "schema": schema}
    asked: dict[str, list[Any]] = {
        "json_schema": [schema], "guided_json": [schema], "output_config": [{"format": form}],
        "response_format": [{"type": "json_schema", "json_schema": {"schema": schema}}],
    }  # fmt: skip
    refused(bench, asked, "/properties/a/uniqueItems")
    body = {**BASES["/v1/responses"], "text": {"format": form}}
    assert "/properties/a/uniqueItems" in error_of(bench.post("/v1/responses", body), 400)


def test_20_constraints_that_nothing_satisfies(bench: Bench) -> None:
    never = [{"allOf": [{"type": "string"}, {"type": "integer"}]}, {"enum": []}, False]
    refused(bench, {"json_schema": never, "guided_json": never, "regex": ["a(?=b)c"]})
    for api in APIS.values():  # known only when it gets there
        reply = bench.post(api.path, api.body("a", ebnf='start: "a" /[^\\s\\S]/', max_tokens=9))
        assert api.text(reply) == "a"
        assert "no token can be sampled" in reply.text


def tool(**parameters: Any) -> Json:
    return {"name": "f", "strict": True, "parameters": {"type": "object", **parameters}}


TOOLS: list[Any] = [
    3,
    "f",
    {},
    tool() | {"name": ""},
    tool() | {"name": "a b"},
    tool() | {"parameters": []},
    tool() | {"parameters": {"type": "strng"}},
    tool(properties={"a": {"type": "string", "pattern": "("}}),
    tool(properties={"a": {"type": ["x"]}}),
    tool(properties=3),
]


def test_21_malformed_tools(bench: Bench) -> None:
    for form in TOOLS:
        named = isinstance(form, dict)
        messages = {**form, "input_schema": form.get("parameters")} if named else form
        for path, spelt, required in (
            ("/v1/chat/completions", {"type": "function", "function": form}, "required"),
            ("/v1/responses", {**form, "type": "function"} if named else form, "required"),
            ("/v1/messages", messages, {"type": "any"}),
        ):
            for stream in (False, True):
                body = {**BASES[path], "tools": [spelt], "stream": stream}
                error_of(bench.post(path, {**body, "tool_choice": required}), 400)


def test_23_control_tokens_are_text(bench: Bench) -> None:
    info = bench.http.get("/tokenizer_info").json()
    names, specials = [*info["special_tokens"].values(), "<|image_pad|>"], set(info["special_ids"])

    def special(text: str) -> int:
        ids = bench.post("/tokenize", {"messages": user(text)}).json()["tokens"]
        return sum(each in specials for each in ids)

    for name in names:
        assert special(f"a{name}b") == special("ab"), name
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
            api = APIS[path]
            api.text(bench.post(path, api.body(f"a{name}b", **SHORT)))


def test_24_templates_of_requests(bench: Bench) -> None:
    count = 0
    for path, _, body in product({"chat_template": ["{{ 1 }}"]}):
        if path != "/tokenize":  # a text there needs none
            error_of(bench.post(path, body), 403)
            count += 1
    assert count >= 5
    deep: Any = {}
    for _ in range(100):
        deep = {"a": deep}
    kwargs = [{"a": "x" * 10**6}, {str(i): 1 for i in range(1000)}, deep]
    for path, _, body in product({"chat_template_kwargs": kwargs}):
        if path != "/tokenize":
            error_of(bench.post(path, body), 400)


# -- images and videos: refused, and never looked for ---------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (65535).to_bytes(4, "big") * 2 + b"\x08\x06\0\0\0"
DATA = "data:image/png;base64," + base64.b64encode(PNG).decode()


def sources(port: int) -> list[str]:
    here = f"127.0.0.1:{port}"
    return [
        DATA, "data:image/png;base64,", "data:image/png,%00", "file:///etc/passwd", "/etc/passwd",
        "http://169.254.169.254/latest/meta-data/", f"http://{here}/a.png", f"//{here}/a.png",
        f"http://x.invalid@{here}/", f"http:\\\\{here}\\a", f"http://[::ffff:127.0.0.1]:{port}/",
        f"ftp://{here}/a", f"unix://{here}", "\x00",
    ]  # fmt: skip


def parts(kind: str, source: Any) -> list[tuple[str, Json]]:
    """A source in every field that APIs have for one: path, body."""
    linked = [
        {"type": f"{kind}_url", f"{kind}_url": {"url": source}},
        {"type": f"{kind}_url", f"{kind}_url": source},
        {"type": kind, kind: source},
        {"type": f"input_{kind}", f"{kind}_url": source},
        {"type": kind, "source": {"type": "url", "url": source}},
        {"type": kind, "source": {"type": "base64", "media_type": "image/png", "data": source}},
    ]
    content = [[{"type": "text", "text": "a"}, each] for each in linked]
    result = {"type": "tool_result", "tool_use_id": "x", "content": [linked[4]]}
    native = [source, [source], {"url": source, "num_frames": 10_000}]
    return [
        *[("/generate", {"text": "a", f"{kind}_data": each}) for each in native],
        *[("/v1/chat/completions", {"messages": user(each)}) for each in content],
        *[("/v1/messages", {"max_tokens": 4, "messages": user(each)}) for each in content],
        *[("/v1/responses", {"input": user(each)}) for each in content],
        *[("/apply-template", {"messages": user(each)}) for each in content],
        ("/v1/messages", {"max_tokens": 4, "messages": user([result])}),
        ("/v1/embeddings", {"input": [linked[0]]}),
        ("/v1/rerank", {"query": "a", "documents": [linked[0]]}),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["image", "video"])
def test_26_to_28_images_and_videos(bench: Bench, kind: str) -> None:
    """Refused in any form, so none is decoded and none is fetched."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        for source in sources(listener.getsockname()[1]):
            for path, body in parts(kind, source):
                reply = bench.post(path, body)
                assert reply.status_code == 400, (path, body, reply.text)
                error_of(reply, 400)
        with pytest.raises(BlockingIOError):
            listener.accept()


# -- browsers -------------------------------------------------------------------------------------


def test_32_pages_of_other_sites(bench: Bench) -> None:
    evil: list[Json] = [
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"}, {"Origin": "http://localhost.evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ]  # fmt: skip
    methods = ("GET", "POST", "OPTIONS")
    for shift, headers in enumerate(evil):
        for number, path in enumerate(GUARDED):
            for method in methods if LONG_RUN else (methods[(number + shift) % 3],):
                reply = bench.http.request(method, path, headers=headers)
                error_of(reply, 403)
                assert "access-control-allow-origin" not in reply.headers
        simple = {**headers, "Content-Type": "text/plain"}  # allowed in a form without preflight
        error_of(bench.http.post("/generate", content=b"{}", headers=simple), 403)


# -- clients that leave, stop, or are many --------------------------------------------------------

WAYS = [(api, stream) for api in APIS.values() for stream in (False, True)]


def opened(bench: Bench, count: int, prompt: Callable[[int], str]) -> list[socket.socket]:
    """Long requests by every API, streamed and not, once the engine has ``count`` more."""
    before = bench.http.stats()["received"]
    found = [
        bench.open(api.path, api.body(prompt(i), stream, **LONG))
        for i, (api, stream) in enumerate(WAYS)
    ]
    until(lambda: bench.http.stats()["received"] == before + count)
    return found


def test_33_clients_that_leave(bench: Bench) -> None:
    assert len(WAYS) == RUNNING
    before = bench.http.stats()
    decoding = opened(bench, len(WAYS), lambda i: f"{i}")
    until(lambda: bench.http.stats()["generated_tokens"] > before["generated_tokens"] + 50)
    queued = opened(bench, len(WAYS), lambda i: f"{i} waits")
    stats = bench.http.stats()
    assert (stats["running"], stats["waiting"]) == (RUNNING, len(WAYS))
    for raw in queued:
        raw.close()
    until(lambda: bench.http.stats()["waiting"] == 0)
    assert bench.http.stats()["aborted"] == before["aborted"] + len(WAYS)
    for raw in decoding:
        raw.close()
    after = bench.http.idle()
    assert after["aborted"] == before["aborted"] + 2 * len(WAYS)
    filling = opened(bench, len(WAYS), lambda i: f"{i} z" * 900)
    for raw in filling:
        raw.close()
    last = bench.http.idle()
    assert last["aborted"] == before["aborted"] + 3 * len(WAYS)
    assert last["computed_tokens"] - after["computed_tokens"] < len(WAYS) * 1800
    texts = [f"{i} y" * 900 for i in range(QUEUED)]
    with bench.open("/v1/embeddings", {"input": texts}):
        until(lambda: bench.http.stats()["received"] > last["received"])
    assert bench.http.idle()["aborted"] > last["aborted"]


def test_34_clients_that_stop_reading(bench: Bench) -> None:
    before = bench.http.stats()
    stalled = [
        bench.open(api.path, {**api.body("a", True, **LONG), **api.extra}, size=4096)
        for api in APIS.values()
        if api.extra  # the others' streams fit into the buffers
    ]
    until(lambda: bench.http.stats()["running"] == len(stalled))
    until(lambda: bench.http.stats()["running"] == 0)
    after = bench.http.idle()
    assert after["aborted"] == before["aborted"] + len(stalled)
    assert after["generated_tokens"] - before["generated_tokens"] < len(stalled) * 3000
    for raw in stalled:
        raw.close()


def test_35_a_flood(bench: Bench) -> None:
    asked: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True, "temperature": 0}
    expected = {
        api.path: api.text(bench.post(api.path, api.body("a", **asked))) for api in APIS.values()
    }

    def ask(way: tuple[Api, bool]) -> int:
        api, stream = way
        reply = bench.post(api.path, api.body("a", stream, **asked))
        if reply.status_code == 200:
            assert api.text(reply, stream) == expected[api.path]
        else:
            assert "--max-queued-requests" in error_of(reply, 429)
            assert int(reply.headers["retry-after"]) >= 1
        return reply.status_code

    codes = at_once([partial(ask, way) for way in WAYS * 9])
    assert codes.count(200) >= RUNNING + QUEUED
    assert 429 in codes


def test_36_flushes_and_doubles_under_traffic(bench: Bench) -> None:
    refused(bench, {"lora_path": ["x"]})
    error_of(bench.post("/unload_lora_adapter", {"lora_name": "x"}), 404)
    asked: dict[str, Any] = {
        "max_tokens": 48,
        "ignore_eos": True,
        "temperature": 0,
        "rid": "double",
    }
    expected = [api.text(bench.post(api.path, api.body("a", **asked))) for api, _ in WAYS]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        replies = [
            pool.submit(bench.post, api.path, api.body("a", stream, **asked))
            for api, stream in WAYS
        ]
        while not all(reply.done() for reply in replies):
            flushed = bench.http.post("/flush_cache")
            assert flushed.status_code in (200, 400)
            assert bench.post("/abort_request", {"rid": "dou"}).json()["aborted"] == 0
    found = [api.text(r.result(), stream) for (api, stream), r in zip(WAYS, replies)]
    assert found == expected
    long: dict[str, Any] = {**LONG, "rid": "double"}
    others: dict[str, Any] = {**asked, "rid": "other"}
    doubles = [APIS["/generate"].body("a", **long)] * 2 + [APIS["/generate"].body("a", **others)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pending = [pool.submit(bench.post, "/generate", body) for body in doubles]
        until(lambda: bench.http.stats()["running"] >= 2)
        until(lambda: bench.post("/abort_request", {"rid": "double"}).json()["aborted"] == 2)
    reasons = [r.result().json()["meta_info"]["finish_reason"]["type"] for r in pending]
    assert reasons == ["abort", "abort", "length"]


def test_30_no_way_in_but_the_port(bench: Bench) -> None:
    """Malformed frames themselves: test/cpu/srt/engine/test_engine_process.py."""
    port = urlsplit(bench.server.url).port
    for process in (bench.process, bench.server.engine()):
        places = [each for each in process.net_connections("inet") if each.status == "LISTEN"]
        assert {each.laddr.port for each in places} <= {port}
        wires = [each.laddr for each in process.net_connections("unix") if "/wire" in each.laddr]
        for wire in wires:
            assert stat.S_IMODE(Path(wire).parent.stat().st_mode) == 0o700
    assert wires


# -- a server with keys, a hostile template and little memory --------------------------------------

TEMPLATE = """
{%- set text = messages[0]['content'] -%}
{%- if text == 'loop' -%}
  {%- for a in range(9999) %}{% for b in range(99999) %}{% endfor %}{% endfor -%}
{%- elif text == 'class' -%}{{ ''.__class__.__mro__[1].__subclasses__() }}
{%- elif text == 'globals' -%}{{ cycler.__init__.__globals__.os.popen('id').read() }}
{%- elif text == 'self' -%}{{ self._TemplateReference__context.environment }}
{%- elif text == 'giant' -%}{{ 'x' * 10 ** 9 }}
{%- elif text == 'power' -%}{{ 10 ** 10000000 }}
{%- elif text == 'wide' -%}{{ '%1000000000d' % 1 }}
{%- elif text == 'again' -%}{%- macro f() -%}{{ f() }}{%- endmacro -%}{{ f() }}
{%- elif text == 'change' -%}{{ messages.append(1) }}
{%- else -%}{{ text }}
{%- endif -%}
"""
ATTACKS = re.findall(r"text == '(\w+)'", TEMPLATE)
KEYS = [
    {"name": "a", "key": "key-a", "max_concurrent_requests": 2},
    {"name": "b", "key": "key-b"},
    {"name": "c", "key": "key-c", "requests_per_minute": 2},
]
KEY = "x-api-key"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("other")
    (directory / "keys.json").write_text(json.dumps(KEYS))
    (directory / "hostile.jinja").write_text(TEMPLATE)
    flags = [
        "--api-keys-file", str(directory / "keys.json"), "--admin-api-key", "top",
        "--chat-template", str(directory / "hostile.jinja"), "--max-total-tokens", "800",
        "--max-engine-restarts", "5",
    ]  # fmt: skip
    with launched([*best_model(directory / "model"), *flags]) as server:
        bench = Bench(server, {KEY: "top"})
        warm(bench)
        bench.settle()
        yield bench
        server.process.terminate()
        assert server.wait_end() == 0


@pytest.fixture
def keyed(other: Bench) -> Iterator[Bench]:
    with other.row() as found:
        yield found


def test_25_hostile_templates(keyed: Bench) -> None:
    routes = ["/v1/chat/completions", "/v1/responses", "/v1/messages"]
    assert len(ATTACKS) == 9
    calls: list[Callable[[], Any]] = [
        partial(keyed.post, path, APIS[path].body(name, **SHORT))
        for path in routes
        for name in ATTACKS
    ]
    calls += [partial(keyed.post, "/apply-template", {"messages": user(name)}) for name in ATTACKS]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        replies = pool.submit(at_once, calls)
        while not replies.done():
            assert keyed.http.get("/health").status_code == 200
    for reply in replies.result():
        assert "template" in error_of(reply, 400)
    for path in routes:
        APIS[path].text(keyed.post(path, APIS[path].body("plain", **SHORT)))


def test_31_keys_on_every_route(keyed: Bench) -> None:
    document = keyed.http.get("/openapi.json").json()["paths"]
    assert {re.sub(r"\{.*?\}", "x", path) for path in document} == {*PATHS}
    hidden = ["/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc", "/nowhere", "//health",
              "/v1/../health", "/Health", "/health/", "/%68ealth", "/metrics?a=b"]  # fmt: skip
    wrong = ["t", "to", "topp", "top top", "key-", "x" * 40_000, "clé"]
    with keyed.client() as stranger:
        del stranger.headers[KEY]
        for path in [*GUARDED, *hidden]:
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"):
                assert stranger.request(method, path).status_code == 401, (method, path)
            error_of(stranger.get(path), 401)
        for number, (path, key) in enumerate(itertools.product(GUARDED, wrong)):
            both = ((KEY.encode(), key.encode()), (b"Authorization", b"Bearer " + key.encode()))
            for headers in both if LONG_RUN else (both[number % 2],):  # seven keys: in turns
                assert stranger.get(path, headers=[headers]).status_code == 401, (key, path)
    with keyed.client(**{KEY: "key-b"}) as tenant:
        for path in ("/metrics", "/flush_cache", "/server_info", "/live", "/live/events", "/x"):
            error_of(tenant.get(path), 403)


def test_37_more_text_than_memory(keyed: Bench, main: Bench) -> None:
    asked: dict[str, Any] = {"max_tokens": 250, "ignore_eos": True, "temperature": 0}
    before = keyed.http.stats()["retractions"]

    def texts(bench: Bench) -> list[str]:
        bodies = [APIS["/generate"].body(f"The {i}", **asked) for i in range(6)]
        replies = at_once([partial(bench.post, "/generate", body) for body in bodies])
        return [APIS["/generate"].text(reply) for reply in replies]

    with main.row():
        expected = texts(main)
    assert texts(keyed) == expected
    assert keyed.http.stats()["retractions"] > before


def test_38_tenants(keyed: Bench) -> None:
    def cached(client: Client, **more: Any) -> int:
        body = {"text": "what a alone knows, word by word", **more}
        body["sampling_params"] = {"max_new_tokens": 1}
        reply = client.post("/generate", json=body)
        assert reply.status_code == 200, reply.text
        return int(reply.json()["meta_info"]["cached_tokens"])

    with keyed.client(**{KEY: "key-a"}) as a, keyed.client(**{KEY: "key-b"}) as b:
        assert (cached(a, rid="of-a"), cached(a) > 5) == (0, True)
        for salt in ("", "a", "a\x00", "\x00a", "\x00"):
            assert cached(b, cache_salt=salt) == 0
        stored = a.post("/v1/responses", json={"input": "plain", "max_output_tokens": 2}).json()
        for path in (f"/v1/responses/{stored['id']}", "/explain/of-a"):
            assert a.get(path).status_code == 200
            error_of(b.get(path), 404)
        a.delete(f"/v1/responses/{stored['id']}")
        body = {
            "text": "a",
            "rid": "long",
            "sampling_params": {"max_new_tokens": 600, "ignore_eos": True},
        }
        with concurrent.futures.ThreadPoolExecutor() as pool:
            flood = [pool.submit(a.post, "/generate", json=body) for _ in range(8)]
            until(lambda: keyed.http.stats()["running"])
            cached(b)  # served beside the flood
            assert b.post("/abort_request", json={"rid": "long"}).json()["aborted"] == 0
            until(lambda: sum(reply.done() for reply in flood) >= 6)
            until(lambda: a.post("/abort_request", json={"rid": "long"}).json()["aborted"])
            until(lambda: keyed.http.stats()["contexts"] == 0)
        codes = sorted(reply.result().status_code for reply in flood)
        assert codes == [200, 200, *[429] * 6]
    with keyed.client(**{KEY: "key-c"}) as c:
        replies = [c.post("/tokenize", json={"prompt": "a"}) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert "requests_per_minute" in error_of(replies[-1], 429)
        assert int(replies[-1].headers["retry-after"]) > 1


def long_answer(bench: Bench, way: tuple[Api, bool]) -> str:
    """The text of a long answer."""
    api, stream = way
    return api.text(bench.post(api.path, api.body("b", stream, **LONG)), stream)


@pytest.fixture(scope="module")
def whole(other: Bench) -> list[str]:
    """The texts of long answers that nothing interrupts, in the order of WAYS."""
    with other.row() as bench:
        texts = [long_answer(bench, (api, False)) for api in APIS.values()]
    return [text for text in texts for _ in (False, True)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_39_an_engine_that_is_lost(keyed: Bench, whole: list[str], number: signal.Signals) -> None:
    engine = keyed.server.engine()
    with concurrent.futures.ThreadPoolExecutor(len(WAYS)) as pool:
        answers = [pool.submit(long_answer, keyed, way) for way in WAYS]
        until(lambda: keyed.http.stats()["contexts"] == len(WAYS))
        until(lambda: keyed.http.stats()["generated_tokens"] > 20)
        engine.send_signal(number)
        until(lambda: keyed.http.get("/health").status_code == 503)
        until(lambda: keyed.http.get("/health").status_code == 200)
        assert [answer.result() for answer in answers] == whole
    gone([engine])
