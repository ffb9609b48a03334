"""/openapi.json: every route is in it, its limits are those that are enforced.

That requests are answered as it says, ``test/e2e/test_openapi.py`` asks the real server.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from helpers.http_server import Served, is_error, serve_text
from helpers.openapi import fits
from sglang.ir.sampling import PARAMETERS, SamplingParams
from sglang.srt.config import Config
from sglang.srt.web.connection.guard import PROBES
from sglang.srt.web.openapi.examples import EXAMPLES
from sglang.srt.web.openapi.limits import sampling_schema
from sglang.srt.web.openapi.openapi_document import document
from sglang.srt.web.route import JSON
from sglang.srt.web.routes import ROUTES


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        yield server


@pytest.fixture(scope="module")
def told(served: Served) -> dict[str, Any]:
    return served.client.get("/openapi.json").json()


def test_every_route_is_told(served: Served, told: dict[str, Any]) -> None:
    routes: list[Any] = served.app.routes
    paths = {route.path.replace(":path", "") for route in routes if "docs" not in route.path}
    assert set(told["paths"]) == paths - {"/openapi.json"}
    operations = [operation for path in told["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names)) == len(ROUTES)
    assert all(len(operation["description"]) > 0 for operation in operations)


@pytest.mark.slow
def test_every_reference_leads_somewhere(told: dict[str, Any]) -> None:
    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if "$ref" in node:
                yield node["$ref"]
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    for reference in set(references(told)):
        found: Any = told
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
    for schema in told["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("route", [r for r in ROUTES if r.method == "GET" and "{" not in r.path])
def test_what_is_read_is_as_told(served: Served, told: dict[str, Any], route: Any) -> None:
    if route.path == "/live/events":
        pytest.skip("a stream without end")
    if route.path in ("/v1/files", "/v1/batches"):
        pytest.skip("without a directory they are refused; test/e2e/test_ollama_and_batches.py")
    reply = served.client.get(route.path)
    assert reply.status_code == 200, reply.text
    content = told["paths"][route.path]["get"]["responses"]["200"]["content"]
    media = reply.headers["content-type"].partition(";")[0]
    assert media in content
    if media == JSON:
        fits(told, reply.json(), content[media]["schema"])


def test_stored_responses_are_as_told(served: Served, told: dict[str, Any]) -> None:
    made = served.client.post("/v1/responses", json=EXAMPLES["/v1/responses"][0]).json()
    path = "/v1/responses/{id}"
    for method, place in (("GET", path), ("GET", f"{path}/input_items"), ("DELETE", path)):
        reply = served.client.request(method, place.replace("{id}", made["id"]))
        content = told["paths"][place][method.lower()]["responses"]["200"]["content"]
        fits(told, reply.json(), content[JSON]["schema"])
    gone = served.client.get(f"/v1/responses/{made['id']}")
    missing = told["paths"][path]["get"]["responses"]["404"]
    assert missing == {"$ref": "#/components/responses/404"}
    fits(told, is_error(gone, 404) and gone.json(), {"$ref": "#/components/schemas/ErrorReply"})


def test_other_methods_are_refused_with_those_that_are_there(served: Served) -> None:
    for path, methods in (
        ("/v1/responses/x", {"GET", "DELETE"}),
        ("/flush_cache", {"GET", "POST"}),
    ):
        reply = served.client.put(path)
        is_error(reply, 405)
        assert set(reply.headers["allow"].split(", ")) == methods


def test_the_key_is_told_where_one_is_needed() -> None:
    told = document(ROUTES, "t", "1", lambda path: path != "/health")
    assert set(told["components"]["securitySchemes"]) == {"bearer", "x-api-key", "basic"}
    assert {"basic": []} in told["paths"]["/"]["get"]["security"]
    closed, opened = told["paths"]["/generate"]["post"], told["paths"]["/health"]["get"]
    assert closed["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert "401" in closed["responses"]
    assert "security" not in opened
    assert "401" not in opened["responses"]
    assert "securitySchemes" not in document(ROUTES, "t", "1", lambda path: False)["components"]


EDGES = [0, 1, -1, 1e-4, 1e-3, 0.5, 2, 2.1, -2, -2.1, 3, 127, 128, 129, 1e6, 1e7, 2**31, 2**63 - 1,
         2**63, -(2**63), -(2**63) - 1]  # fmt: skip
TEXTS = [[], [""], ["a"], ["a" * 1024], ["a" * 1025], *(["a"] * n for n in (16, 17, 128, 129))]
VALUES: dict[str, list[Any]] = {
    "stop": TEXTS,
    "stop_regex": TEXTS,
    "stop_token_ids": [[], [1] * 128, [1] * 129],
    "logit_bias": [{}, {"1": 100}, {"1": 101}, {"1": -100.5}],
}


def test_limits_of_sampling_are_those_that_are_enforced() -> None:
    fields = sampling_schema()["properties"]
    tried = itertools.chain.from_iterable(
        ((name, value) for value in VALUES.get(name, EDGES))
        for name in PARAMETERS
        if name not in ("constraint", "ignore_eos", "no_stop_trim", "skip_special_tokens")
    )
    for name, value in tried:
        if isinstance(value, float) and name in (
            "n",
            "top_k",
            "seed",
            "max_new_tokens",
            "min_new_tokens",
        ):
            continue  # JSON Schema takes 1e6 for an integer, a body does not
        told = jsonschema.Draft202012Validator(fields[name]).is_valid(value)
        given = {int(k): v for k, v in value.items()} if isinstance(value, dict) else value
        given = tuple(given) if isinstance(given, list) else given
        most: dict[str, Any] = {"max_new_tokens": 2**63} if name == "min_new_tokens" else {}
        try:
            SamplingParams(**{name: given, **most}).verify(vocab_size=10)
            taken = True
        except ValueError:
            taken = False
        assert told == taken, f"{name}: {value!r:.60} is told as {told} and taken as {taken}"


def test_a_server_with_a_key_tells_of_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serve_text(tmp_path_factory.mktemp("tokenizer"), Config.of(api_key="k")) as server:
        told = server.client.get("/openapi.json").json()
    for path, operations in told["paths"].items():
        assert all(("security" in one) != (path in PROBES) for one in operations.values())
