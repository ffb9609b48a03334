"""``parts``: from texts to tokens and segments, and the field of ``/generate`` that brings them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from helpers.fake_worker import fake_info
from helpers.http_server import Served, is_error, serve_text
from helpers.parallel import segments_of, tokens_of
from helpers.toy_tokenizer import byte_level, sentencepiece
from sglang.srt.core.ints import ints
from sglang.srt.core.segments import Segment
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest, Logprobs
from sglang.srt.requests.completion.parallel_parts import Parts, read_parts
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Tokenizer(request.param(tmp_path_factory.mktemp("tokenizer")))


def read(tokenizer: Tokenizer, parts: Parts, context: int = 4096) -> tuple[list[int], Any]:
    client: Any = SimpleNamespace(info=fake_info(4096, 1, context=context))
    tokens, segments = asyncio.run(read_parts(Completer(client, tokenizer), parts))
    return list(tokens), segments


# -- reading -------------------------------------------------------------------------------------


def test_items_are_tokenized_alone_and_begin_once(tokenizer: Tokenizer) -> None:
    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, False))

    begin = tokenizer.before
    items: list[Any] = [
        begin + ids("hello"), [ids(" one"), ids(" world")], ids(" two"), [ids("a"), ids("b")],
        [ids("c"), ids("d"), ids("e")], ids("end"),
    ]  # fmt: skip
    parts = ["hello", [" one", " world"], " two", ["a", "b"], ["c", "d", "e"], "end"]
    assert read(tokenizer, parts) == (tokens_of(items), segments_of(items))
    items = [begin, *items[1:]]
    assert read(tokenizer, ["", *parts[1:]]) == (tokens_of(items), segments_of(items))
    assert read(tokenizer, parts[1:]) == (tokens_of(items), segments_of(items))


def test_texts_alone_are_a_plain_prompt(tokenizer: Tokenizer) -> None:
    assert read(tokenizer, ["hello"]) == (list(tokenizer.encode("hello")), ())
    both = list(tokenizer.encode("hello")) + list(tokenizer.encode(" world", False))
    for parts in (["hello", " world"], [["hello"], "", [" world", ""]], ["hello", [], " world"]):
        assert read(tokenizer, parts) == (both, ())


def test_a_beginning_that_is_there_is_not_repeated(tmp_path: Path) -> None:
    tokenizer = Tokenizer(sentencepiece(tmp_path))
    bos = tokenizer.bos_id
    assert bos is not None
    assert read(tokenizer, ["<s>hello", "x"])[0].count(bos) == 1


def test_the_last_token_counts_as_what_follows_if_nothing_does(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_level(tmp_path))
    for last, segments in (
        (["q", "x"], (Segment(1, 1), Segment(2, 2))),
        (["q", "xz"], (Segment(1, 1), Segment(2, 1), Segment(3, 3))),
        (["q", "x", ""], (Segment(1, 1), Segment(2, 2))),
    ):
        for parts in (["p", last], ["p", last, ""]):
            assert read(tokenizer, parts)[1] == segments
    assert read(tokenizer, [["q", "x"]])[1] == (Segment(1, 1),)


@pytest.mark.parametrize("parts", [[], [""], [[]], ["", ["", ""]]])
def test_no_text_at_all(tokenizer: Tokenizer, parts: Parts) -> None:
    with pytest.raises(RequestError, match="at least one"):
        read(tokenizer, parts)


def test_too_long_is_refused_before_all_is_tokenized(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = itertools.count()
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda *a: (next(seen), encode(*a))[1])
    with pytest.raises(RequestError, match="at least 2500") as caught:
        read(tokenizer, [["x" * 20 * tokenizer.longest] * 500], context=64)
    assert caught.value.code == "context_length_exceeded"
    assert next(seen) == 0
    with pytest.raises(RequestError, match=r"has 6\d tokens"):
        read(tokenizer, [["x"] * 200], context=64)
    assert next(seen) <= 67


def test_impossible_segments_are_refused() -> None:
    request = CompletionRequest(
        ints(range(9)), segments=(Segment(2, 2), Segment(4, 2), Segment(6, 6))
    )
    assert request.verified(fake_info(64, 1)).segments == request.segments
    with pytest.raises(RequestError, match="--page-size 1") as caught:
        request.verified(fake_info(64, 4))
    assert caught.value.param == "parts"
    for start in (0, 5):
        scored = CompletionRequest(
            request.prompt, logprobs=Logprobs(start=start), segments=request.segments
        )
        with pytest.raises(RequestError, match="begin at 6 or later") as caught:
            scored.verified(fake_info(64, 1))
        assert caught.value.param == "logprob_start_len"


# -- over HTTP -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    yield served.client
    served.client.idle()


def generate(http: httpx.Client, **body: Any) -> Any:
    reply = http.post("/generate", json={"sampling_params": GREEDY, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


PARTS = ["the fox", [" jumps", " sleeps"], " the dog"]


def test_parts(served: Served, http: httpx.Client) -> None:
    first, again = generate(http, parts=PARTS), generate(http, parts=PARTS)
    tokens, _ = read(served.tokenizer, PARTS)
    plain = generate(http, input_ids=tokens)
    meta = again["meta_info"]
    assert first["output_ids"] == again["output_ids"] == plain["output_ids"]  # the worker is flat
    assert meta["prompt_tokens"] == len(tokens)
    assert meta["cached_tokens"] == len(tokens) - 1
    assert plain["meta_info"]["cached_tokens"] == len(read(served.tokenizer, PARTS[:1])[0])
    assert generate(http, parts=PARTS, cache_salt="mine")["meta_info"]["cached_tokens"] == 0


def test_parts_with_n_a_stream_and_no_token(http: httpx.Client) -> None:
    one = generate(http, parts=PARTS)
    several = generate(http, parts=PARTS, sampling_params={**GREEDY, "n": 3})
    assert [found["text"] for found in several] == [one["text"]] * 3
    filled = generate(http, parts=PARTS, sampling_params={"max_new_tokens": 0})
    assert filled["output_ids"] == []
    body = {"parts": PARTS, "sampling_params": GREEDY, "stream": True}
    lines = http.post("/generate", json=body).text.split("\n\n")
    assert json.loads(lines[-3].partition("data: ")[2])["text"] == one["text"]
    assert lines[-2] == "data: [DONE]"


def test_log_probabilities_of_the_tail(served: Served, http: httpx.Client) -> None:
    tail = len(read(served.tokenizer, PARTS)[0]) - len(served.tokenizer.encode(str(PARTS[2])))
    found = generate(http, parts=PARTS, return_logprob=True, logprob_start_len=tail)["meta_info"]
    given = [token for _, token, _ in found["input_token_logprobs"]]
    assert given == list(served.tokenizer.encode(str(PARTS[2])))
    assert found["input_token_logprobs"][0][0] is None
    assert all(value is not None for value, *_ in found["input_token_logprobs"][1:])
    assert len(found["output_token_logprobs"]) == 6
    for start in (0, tail - 1):
        body = {"parts": PARTS, "return_logprob": True, "logprob_start_len": start}
        error = is_error(http.post("/generate", json=body), 400)
        assert error["param"] == "logprob_start_len"
        assert f"begin at {tail} or later" in error["message"]


BAD: list[tuple[Any, str]] = [
    ("text", "array"),
    ([], "at least one"),
    (["", ["", ""]], "at least one"),
    (["a", [["b"]]], "got `array` - at `$.parts[1][0]`"),
    (["a", 1], "got `int` - at `$.parts[1]`"),
    (["a", None], "got `null` - at `$.parts[1]`"),
    (["a", ["b", 2]], "got `int` - at `$.parts[1][1]`"),
    (["a", {"b": 1}], "got `object` - at `$.parts[1]`"),
    (["word " * 3000], "context length"),
    ([["word"] * 3000], "context length"),
]


@pytest.mark.parametrize(("parts", "words"), BAD, ids=range(len(BAD)))
def test_malformed_parts_are_refused(http: httpx.Client, parts: Any, words: str) -> None:
    error = is_error(http.post("/generate", json={"parts": parts}), 400)
    assert words in error["message"]
    assert error["param"] in ("parts", "prompt")
    streamed = is_error(http.post("/generate", json={"parts": parts, "stream": True}), 400)
    assert streamed["message"] == error["message"]


@pytest.mark.parametrize("other", [{"text": "a"}, {"input_ids": [1]}, {"text": ["a"]}])
def test_parts_stand_alone(http: httpx.Client, other: dict[str, Any]) -> None:
    error = is_error(http.post("/generate", json={"parts": PARTS, **other}), 400)
    assert "one of text, input_ids and parts" in error["message"]


def test_a_list_field_has_one_entry_for_parts(http: httpx.Client) -> None:
    body = {"parts": PARTS, "sampling_params": [GREEDY, GREEDY]}
    assert "2 entries for 1" in is_error(http.post("/generate", json=body), 400)["message"]
