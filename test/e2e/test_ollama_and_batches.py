"""Ollama's API and batches through the clients of their own, on the embedded model."""

from __future__ import annotations

import json
import runpy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from helpers.launched import launched
from helpers.openapi import fits
from openai.types import Batch

pytest.importorskip("torch")

from sglang.srt.tokenizer.tokenizer import EMBEDDED

KEY = "sk-of-the-tests"
FLAGS = ["--device", "cpu", "--max-total-tokens", "32768"]
CHAT, COUNT = "/v1/chat/completions", 120
CASES = Path(__file__).parent / "clients" / "cases" / "ollama_cases.py"
pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the answers are the embedded model's"
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(json.dumps([{"name": "other", "key": "sk-other"}]))
    return path


@dataclass
class Killed:
    """A batch whose server was killed; ``answers``: those that were on disk, by whole lines."""

    batch: str
    answers: bytes


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> list[str]:
    own = ["--api-key", KEY, "--api-keys-file", str(keys), "--batch-max-file-bytes", "1000000",
           "--batch-dir", str(tmp_path_factory.mktemp("batches"))]  # fmt: skip
    return [*FLAGS, *own]


@pytest.fixture(scope="module")
def killed(flags: list[str]) -> Killed:
    with launched(flags) as server:
        api = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=60)
        batch = begin(api, b"".join(line(f"c{i}") for i in range(COUNT)))
        while not (counts := api.batches.retrieve(batch.id).request_counts) or not counts.completed:
            time.sleep(0.005)
        server.process.kill()
        server.process.wait()
    (path,) = Path(flags[-1], "batches").glob("*.output")
    found = path.read_bytes()
    return Killed(batch.id, found[: found.rfind(b"\n") + 1])


@pytest.fixture(scope="module")
def url(flags: list[str], killed: Killed) -> Iterator[str]:
    with launched(flags) as server:
        yield server.url


@pytest.fixture(scope="module")
def key() -> str:
    return KEY


# The cases of the client's own environment, with the version that the tests have. Its fixture of
# a client has another name here.
_CASES = runpy.run_path(str(CASES))
globals().update({name: case for name, case in _CASES.items() if name.startswith("test_")})
client = _CASES["client"]


# -- batches --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def api(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=60)


def line(name: str, url: str = CHAT, **body: Any) -> bytes:
    said = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0}
    row = {"custom_id": name, "method": "POST", "url": url, "body": body or said}
    return json.dumps(row).encode() + b"\n"


def ended(api: openai.OpenAI, batch: Batch, seconds: float = 50) -> Batch:
    deadline = time.monotonic() + seconds
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = api.batches.retrieve(batch.id)
    return batch


def rows(api: openai.OpenAI, file: str | None) -> dict[str, Any]:
    if file is None:
        return {}
    found = [json.loads(text) for text in api.files.content(file).text.splitlines()]
    assert len({row["custom_id"] for row in found}) == len(found)
    return {row["custom_id"]: row for row in found}


def begin(api: openai.OpenAI, data: bytes, endpoint: Any = CHAT, **more: Any) -> Batch:
    file = api.files.create(file=("in.jsonl", data), purpose="batch")
    return api.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more
    )


def test_a_batch_of_chats(api: openai.OpenAI) -> None:
    data = b"".join(line(f"c{i}") for i in range(12))
    data += line("bad", messages="none") + line("cold", messages=[{"role": "cat"}])
    batch = begin(api, data, metadata={"of": "the tests"})
    assert batch.status in ("validating", "in_progress")
    batch = ended(api, batch)
    assert batch.status == "completed", batch
    assert batch.metadata == {"of": "the tests"}
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (14, 12, 2)
    good, bad = rows(api, batch.output_file_id), rows(api, batch.error_file_id)
    assert set(good) == {f"c{i}" for i in range(12)}
    replies = [row["response"]["body"]["choices"][0]["message"]["content"] for row in good.values()]
    assert replies == ["42"] * 12
    assert {row["response"]["status_code"] for row in bad.values()} == {400}
    assert bad["cold"]["response"]["body"]["error"]["message"].startswith("messages[0].role")
    assert batch.id in [one.id for one in api.batches.list(limit=100)]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": "What is 17 + 25?", "max_tokens": 4}),
        ("/v1/embeddings", {"input": "the lamp is lit"}),
        ("/v1/responses", {"input": "What is 17 + 25?", "max_output_tokens": 8}),
    ],
)
def test_other_routes(api: openai.OpenAI, endpoint: str, body: dict[str, Any]) -> None:
    batch = ended(api, begin(api, line("a", endpoint, **body), endpoint))
    (row,) = rows(api, batch.output_file_id).values()
    assert row["response"]["status_code"] == 200
    assert row["response"]["body"]["object"] in ("text_completion", "list", "response")


def test_files(api: openai.OpenAI, url: str) -> None:
    file = api.files.create(
        file=("../../x.jsonl", b"data"), purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 7200},
    )  # fmt: skip
    assert (file.filename, file.bytes, file.purpose) == ("x.jsonl", 4, "batch")
    assert (file.expires_at or 0) - file.created_at == 7200
    assert api.files.retrieve(file.id) == file
    assert api.files.content(file.id).content == b"data"
    assert file.id in [one.id for one in api.files.list(purpose="batch")]
    other = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-other", max_retries=0, timeout=60)
    for act in (other.files.retrieve, other.files.content, other.files.delete):
        with pytest.raises(openai.NotFoundError):
            act(file.id)
    assert [one.id for one in other.files.list()] == []
    assert api.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        api.files.retrieve(file.id)


def test_lists_are_as_documented(api: openai.OpenAI, url: str) -> None:
    ended(api, begin(api, line("a")))
    headers = {"Authorization": f"Bearer {KEY}"}
    told = httpx.get(f"{url}/openapi.json", headers=headers).json()
    for path in ("/v1/files", "/v1/batches"):
        reply = httpx.get(f"{url}{path}", headers=headers, params={"limit": 2}).json()
        assert len(reply["data"]) == 2
        known = told["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        fits(told, reply, known["schema"])


def test_wrong_lines_and_fields_are_named(api: openai.OpenAI, url: str) -> None:
    batch = ended(api, begin(api, line("a") + b"{\n" + line("a")))
    assert (batch.status, batch.output_file_id) == ("failed", None)
    assert batch.errors is not None
    found = [(error.code, error.line) for error in batch.errors.data or ()]
    assert found == [("invalid_json_line", 2), ("duplicate_custom_id", 3)]
    with pytest.raises(openai.ConflictError):
        api.batches.cancel(batch.id)
    with pytest.raises(openai.BadRequestError, match="batch-max-file-bytes"):
        api.files.create(file=("a", b"x" * 1_000_001), purpose="batch")
    with pytest.raises(openai.BadRequestError, match="purpose is 'fine-tune'"):
        api.files.create(file=("a", b"x"), purpose="fine-tune")
    for fields in ({"endpoint": "/v1/none"}, {"completion_window": "30d"}, {"input_file_id": "x"}):
        good: dict[str, Any] = {"input_file_id": batch.input_file_id, "endpoint": CHAT,
                                "completion_window": "24h"}  # fmt: skip
        with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
            api.batches.create(**{**good, **fields})
    headers = {"Authorization": f"Bearer {KEY}"}
    for path in ("/v1/files/..%2f..%2flock", "/v1/files/%00/content", "/v1/batches/.."):
        assert httpx.get(f"{url}{path}", headers=headers).status_code in (400, 404)


def test_cancel(api: openai.OpenAI) -> None:
    story: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 200,
    }
    batch = begin(api, b"".join(line(f"c{i}", **story, ignore_eos=True) for i in range(200)))
    batch = ended(api, api.batches.cancel(batch.id))
    assert batch.status == "cancelled"
    assert len(rows(api, batch.output_file_id)) < 200
    assert httpx.get(  # nothing is left in the engine
        str(api.base_url).replace("/v1/", "/get_load"), headers={"Authorization": f"Bearer {KEY}"}
    ).status_code in (200, 403)


def test_requests_that_others_abort_are_run_again(api: openai.OpenAI, url: str) -> None:
    """A pause aborts all that runs: no line has a cut text for its answer."""
    body = {"prompt": "One, two,", "max_tokens": 60, "ignore_eos": True}
    data = b"".join(line(f"c{i}", "/v1/completions", **body) for i in range(24))
    batch = begin(api, data, "/v1/completions")
    headers = {"Authorization": f"Bearer {KEY}"}
    while not (counts := api.batches.retrieve(batch.id).request_counts) or not counts.completed:
        time.sleep(0.005)
    httpx.post(f"{url}/pause_generation", headers=headers)
    httpx.post(f"{url}/continue_generation", headers=headers)
    batch = ended(api, batch)
    found = rows(api, batch.output_file_id)
    ends = {row["response"]["body"]["choices"][0]["finish_reason"] for row in found.values()}
    assert len(found) == 24
    assert ends == {"length"}


def test_kill_9_loses_and_repeats_no_answer(api: openai.OpenAI, killed: Killed) -> None:
    """The server of this file goes on with a batch of one that was killed in the middle."""
    batch = ended(api, api.batches.retrieve(killed.batch))
    assert batch.status == "completed"
    assert set(rows(api, batch.output_file_id)) == {f"c{i}" for i in range(COUNT)}
    assert killed.answers
    text = api.files.content(batch.output_file_id or "").content
    assert text.startswith(killed.answers)
    assert text.count(b"\n") > killed.answers.count(b"\n")  # the batch had not ended
