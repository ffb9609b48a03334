"""The server conforms to /openapi.json: its examples are answered as documented. Schemathesis,
which makes requests that fit the document and requests that do not, finds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import Client
from helpers.launched import best_model, client_of, launched
from helpers.openapi import fits
from helpers.seeds import LONG

pytest.importorskip("torch")

from sglang.srt.web.openapi.examples import EXAMPLES
from sglang.srt.web.route import EVENTS, JSON, LINES
from sglang.srt.web.routes import ROUTES

HERE = Path(__file__).resolve().parent
KEY = "sk-of-the-tests"
EXAMPLES_EACH = os.environ.get("SCHEMATHESIS_EXAMPLES", "4")  # random ones, besides the fixed ones
BODIES = [
    (route.path, i) for route in ROUTES if route.body for i in range(len(EXAMPLES[route.path]))
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    flags = best_model(tmp_path_factory.mktemp("model"))
    # Long texts would be written where a body asks for them, and for nothing else.
    flags += ["--device", "cpu", "--context-length", "256", "--api-key", KEY]
    with launched(flags) as server, client_of(server) as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        yield client


@pytest.fixture(scope="module")
def told(client: Client) -> dict[str, Any]:
    return client.get("/openapi.json").json()


# Features that the embedded model lacks: labels and adapters.
REFUSED = {
    "/classify": 400, "/load_lora_adapter": 400, "/unload_lora_adapter": 404, "/workers": 400,
    "/workers/leave": 404, "/get": 404, "/set": 404, "/cancel": 404,  # no session is open
    "/batches": 400,  # this server has no directory for files
    "/inferlets": 400, "/inferlets/{id}/runs": 404,
    "/runs/{id}/messages": 404,
}  # fmt: skip


@pytest.mark.parametrize(("path", "place"), BODIES)
def test_examples_are_answered_as_told(
    client: Client, told: dict[str, Any], path: str, place: int
) -> None:
    operation, body = told["paths"][path]["post"], EXAMPLES[path][place]
    fits(told, body, operation["requestBody"]["content"][JSON]["schema"])
    reply = client.post(path, json=body)
    if path == "/pause_generation":
        assert client.post("/continue_generation").status_code == 200
    if (refused := REFUSED.get(path.removeprefix("/v1"))) is not None:
        assert reply.status_code == refused, reply.text
        assert str(refused) in operation["responses"]
        return
    assert reply.status_code == 200, reply.text
    media = reply.headers["content-type"].partition(";")[0]
    assert media == (
        (LINES if path.startswith("/api/") else EVENTS) if body.get("stream") else JSON
    )
    if media == JSON:
        fits(told, reply.json(), operation["responses"]["200"]["content"][media]["schema"])


CHATS = "^/(v1/(chat|responses|messages)|api/)"
# Routes whose bodies are those of others, which are covered in every run.
COUNTING = "^/v1/(responses/input_tokens|messages/count_tokens)$"
ALIASES = "^/(score|rerank|v2/rerank|v1/(de)?tokenize|v1/(un)?load_lora_adapter)$"
PARTS = {
    "examples": ["--phases", "examples"],
    # Hundreds of requests for each field: a part of the paths at a time.
    "coverage of chats": [
        "--phases", "coverage", "--include-path-regex", CHATS, "--exclude-path-regex", COUNTING
    ],
    "coverage of the rest": ["--phases", "coverage", "--exclude-path-regex", f"{CHATS}|{ALIASES}"],
    "random": ["--phases", "fuzzing,stateful"],
}  # fmt: skip
if LONG:
    PARTS["coverage of the same bodies"] = [
        "--phases", "coverage", "--include-path-regex", f"{COUNTING}|{ALIASES}"
    ]  # fmt: skip


@pytest.mark.timeout(900)  # thousands of requests, on a busy machine
@pytest.mark.parametrize("part", PARTS)
def test_schemathesis_finds_nothing(client: Client, tmp_path: Path, part: str) -> None:
    before = client.golden()
    program = Path(sys.executable).with_name("schemathesis")
    command = [str(program), "--config-file", str(HERE / "schemathesis.toml"), "--no-color", "run",
               f"{client.base_url}/openapi.json".replace("//openapi", "/openapi"),
               "--header", f"Authorization: Bearer {KEY}", *PARTS[part], "--workers", "1",
               "--request-timeout", "100",  # a busy machine is no finding
               "--generation-deterministic", "--max-examples", str(EXAMPLES_EACH)]  # fmt: skip
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=850,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert client.golden() == before
    client.idle()
