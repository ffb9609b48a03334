"""Options of ``/generate``: the numbers are those of a request for each row; what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.http_server import Served, is_error, serve_text
from sglang.ir.choices import METHODS, Decision
from sglang.semantics.choice_requests import Requests, choice_requests
from sglang.srt.tokenizer.encoding_pieces import last_cut

OPTIONS = [" fox", " foxes", " the lazy dog", "x jumps", "é", " fox", *(f" {i}" for i in range(60))]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer"), queued=256) as server:
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    yield served.client
    served.client.idle()


def decided(http: httpx.Client, requests: Requests[Decision]) -> Decision:
    answer = None
    while True:
        try:
            reply = http.post("/generate", json=requests.send(answer))
        except StopIteration as end:
            return end.value
        assert reply.status_code == 200, reply.text
        answer = reply.json()


PROMPTS = {
    "plain": "The quick brown",
    "tokens across the boundary": "The quick brown fo",
    "no prompt": "",
    "a long one": "the lazy dog jumps over\n" * 30 + "and the quick brown fo",
    "bytes": "Grüße aus Kö",
}


@pytest.mark.parametrize("case", PROMPTS)
@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if not m.generates])
def test_scores_are_those_of_a_request_for_each_row(
    http: httpx.Client, case: str, method: str
) -> None:
    text, chosen = PROMPTS[case], METHODS[method]
    rows = decided(http, choice_requests(text, {}, {}, OPTIONS, chosen, by_rows=True))
    tree = decided(http, choice_requests(text, {}, {}, OPTIONS, chosen))
    assert _numbers(tree.meta) == pytest.approx(_numbers(rows.meta), abs=1e-5)
    if chosen.unconditional:  # two may be equal but for the rounding to float32
        gains = rows.meta["normalized_unconditional_prompt_logprobs"]
        assert gains[OPTIONS.index(tree.text)] == pytest.approx(max(gains), abs=1e-5)
    else:
        assert tree.text == rows.text
    assert tree.meta["usage"]["prompt_tokens"] < rows.meta["usage"]["prompt_tokens"]


def _numbers(value: Any) -> list[float]:
    """All numbers of a decision, but for those of its usage; texts and None as hashes."""
    if isinstance(value, dict):
        return [n for name in sorted(value) if name != "usage" for n in _numbers(value[name])]
    if isinstance(value, list):
        return [float(len(value)), *(n for one in value for n in _numbers(one))]
    return [float(value if isinstance(value, (int, float)) else hash(value))]


def test_entries_name_their_tokens(http: httpx.Client) -> None:
    body = {"text": "The quick", "options": [" brown", " fox"]}
    meta = http.post("/generate", json=body).json()["meta_info"]
    assert [[entry[2] for entry in row] for row in meta["option_logprobs"]] == [
        [None] * len(row) for row in meta["option_logprobs"]
    ]
    answer = http.post("/generate", json={**body, "return_text_in_logprobs": True}).json()
    rows = answer["meta_info"]["option_logprobs"]
    assert ["".join(entry[2] for entry in row) for row in rows] == [" brown", " fox"]
    assert (answer["text"], answer["output_ids"]) == ("", [])
    ids = [[entry[1] for entry in row] for row in rows]
    prompt = http.post("/tokenize", json={"text": "The quick"}).json()["tokens"]
    again = http.post("/generate", json={"input_ids": prompt, "options": ids}).json()
    found = again["meta_info"]["option_logprobs"]
    assert [[e[:2] for e in row] for row in found] == [[e[:2] for e in row] for row in rows]


REFUSED: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "none": ({"options": []}, "options has 0 entries; give 1 to 10000", "options"),
    "too many": ({"options": ["a"] * 10_001}, "options has 10001 entries", "options"),
    "a number": ({"options": [1]}, "options must be texts after a text, or lists", "options"),
    "mixed": ({"options": ["a", [1]]}, "options must be texts after a text", "options"),
    "no such id": ({"options": [[-3]], "text": None, "input_ids": [1]}, "id -3", "prompt"),
    "a list of texts": ({"text": ["a", "b"]}, "options must be texts after a text", "options"),
    "a stream": ({"stream": True}, "stream is true and options are scored", "stream"),
    "sampling": ({"sampling_params": {"n": 2}}, "sampling_params is given with", "sampling_params"),
    "log-probabilities": ({"return_logprob": True}, "return_logprob is given", "return_logprob"),
    "an image": ({"image_data": "x"}, "image_data is given with options", "image_data"),
    "rids": ({"rid": ["a"]}, "rid is a list; with options there is one prompt", "rid"),
    "too long": ({"options": ["a b " * 2000]}, "maximum context length", "prompt"),
    "surrogates": ({"text": "a", "options": ["\ud800"]}, "lone surrogate", None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(http: httpx.Client, case: str) -> None:
    fields, message, field = REFUSED[case]
    body = {"text": "The quick", "options": [" a", " b"], **fields}
    body = {name: value for name, value in body.items() if value is not None}
    content = json.dumps(body)  # JSON can spell a lone surrogate
    reply = http.post("/generate", content=content, headers={"Content-Type": "application/json"})
    assert is_error(reply, 400), reply.text
    assert message in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == field


def test_the_last_cut_of_a_text() -> None:
    assert last_cut("the fox, a dog!") == 10
    assert last_cut("the fox ") == 7
    assert last_cut("the fox") == 3
    assert last_cut("thefox") == last_cut("") == last_cut(" ") == 0
    assert last_cut("one\ntwo") == 3
