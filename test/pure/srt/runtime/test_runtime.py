"""The runtime under HTTP: typed requests and answers, in process, without a model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from helpers.http_server import serve_text
from helpers.text_worker import text_engine
from helpers.toy_tokenizer import byte_level
from sglang.srt.config import Config
from sglang.srt.core.messages import Done
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import Caller
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.generate_request import GenerateRequest
from sglang.srt.runtime.generated import EndedByLength, Generated
from sglang.srt.runtime.generation import generate, stream
from sglang.srt.runtime.request_fields import convert, plain
from sglang.srt.runtime.vectors import Encoded, EncodeRequest, encode
from sglang.srt.tokenizer import Tokenizer

T = TypeVar("T")
GREEDY = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
TIMES = {"id", "e2e_latency", "cached_tokens"}


class Counts:
    """An observer that counts."""

    def __init__(self) -> None:
        self.updates, self.computed_tokens, self.watched = 0, 0, 0

    @contextlib.contextmanager
    def watch(self, request: CompletionRequest) -> Iterator[Counts]:
        self.watched += 1
        yield self

    def update(self, output: Output) -> None:
        self.updates += 1

    def computed(self, done: Done, seconds: float) -> None:
        self.computed_tokens += done.stats.prompt_tokens


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


def run(
    tokenizer: Tokenizer, use: Callable[[EngineRuntime], Awaitable[T]], observer: Any = None
) -> T:
    """The result of ``use`` on a runtime of its own."""
    engine, _ = text_engine(tokenizer)

    async def main() -> T:
        client = engine.client_on(asyncio.get_running_loop())
        return await use(EngineRuntime(Config.of(), Completer(client, tokenizer), observer))

    try:
        return asyncio.run(main())
    finally:
        engine.close()


def test_generate_answers_with_structs(tokenizer: Tokenizer) -> None:
    request = GenerateRequest(text="the lazy dog", sampling_params=GREEDY)
    found = run(tokenizer, lambda runtime: generate(runtime, request))
    assert isinstance(found, Generated)
    assert found.meta_info.finish_reason == EndedByLength(4)
    assert len(found.output_ids) == found.meta_info.completion_tokens == 4
    assert found.meta_info.input_token_logprobs is msgspec.UNSET


def test_generate_answers_what_http_does(tokenizer: Tokenizer, tmp_path: Path) -> None:
    body = {"text": ["the lazy dog", "a"], "sampling_params": GREEDY, "return_logprob": True,
            "logprob_start_len": 0, "rid": ["one", "two"]}  # fmt: skip
    request = convert(body, GenerateRequest)
    found = plain(run(tokenizer, lambda runtime: generate(runtime, request)))
    with serve_text(tmp_path, tokenizer=tokenizer) as served:
        sent = served.client.post("/generate", json=body).json()
    for ours, theirs in zip(found, sent, strict=True):
        assert ours["text"] == theirs["text"]
        assert ours["output_ids"] == theirs["output_ids"]
        assert ours["meta_info"].keys() == theirs["meta_info"].keys()
        for name in theirs["meta_info"].keys() - TIMES:
            values = ours["meta_info"][name], theirs["meta_info"][name]
            assert msgspec.json.encode(values[0]) == msgspec.json.encode(values[1]), name


def test_stream_grows_to_the_answer(tokenizer: Tokenizer) -> None:
    request = GenerateRequest(text="the lazy dog", sampling_params=GREEDY)

    async def both(runtime: EngineRuntime) -> tuple[list[Generated], Any]:
        return [item async for item in stream(runtime, request)], await generate(runtime, request)

    items, whole = run(tokenizer, both)
    assert [len(item.output_ids) for item in items] == sorted(len(i.output_ids) for i in items)
    assert items[-1].text == whole.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, r"max_new_tokens is -1.*0"),
        ({"text": "a", "sampling_params": {"top_p": 2}}, r"top_p is 2.*1"),
        (
            {"text": "a", "sampling_params": {"min_new_tokens": 0, "min_tokens": False}},
            "min_new_tokens and min_tokens are names of one thing and differ",
        ),
        ({"text": "a", "input_ids": [1]}, "Give one of text, input_ids and parts"),
        ({"text": ["a", "b"], "rid": ["a"]}, "rid has 1 entries for 2 prompts"),
        ({"text": 5}, "Expected `str | array | null`, got `int`"),
        ({"text": "a", "input_embeds": [[1.0]]}, "input_embeds is set"),
    ],
)
def test_errors_name_field_value_and_limit(
    tokenizer: Tokenizer, fields: dict[str, Any], message: str
) -> None:
    async def use(runtime: EngineRuntime) -> None:
        await generate(runtime, convert(fields, GenerateRequest))

    with pytest.raises(RequestError, match=message):
        run(tokenizer, use)


def test_encode_answers_with_vectors(tokenizer: Tokenizer) -> None:
    request = EncodeRequest(text=["a", "b c"], dimensions=4)
    found = run(tokenizer, lambda runtime: encode(runtime, request))
    assert isinstance(found, list)
    assert [type(one) for one in found] == [Encoded, Encoded]
    assert {len(one.embedding) for one in found} == {4}


def test_an_observer_and_a_caller_see_what_is_used(tokenizer: Tokenizer) -> None:
    counts, charged = Counts(), list[int]()
    caller = Caller("request", charge=charged.append)
    request = GenerateRequest(text="the lazy dog", sampling_params=GREEDY)

    async def use(runtime: EngineRuntime) -> tuple[Any, Any]:
        found = await generate(runtime, request, caller)
        return found, await encode(runtime, EncodeRequest(text="a"), caller)

    found, encoded = run(tokenizer, use, counts)
    assert counts.watched == 1
    assert counts.updates >= 1
    assert counts.computed_tokens == encoded.meta_info.prompt_tokens
    meta = found.meta_info
    used = meta.prompt_tokens + meta.completion_tokens + encoded.meta_info.prompt_tokens
    assert sum(charged) == used
