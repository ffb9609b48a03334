"""Completions that begin with tokens of a server that was lost: the rest is that of the whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers.text_worker import text_engine
from helpers.toy_tokenizer import byte_level
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import ints
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest, Logprobs
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

PROMPT = ints(range(40, 60))
Complete = Callable[[CompletionRequest], Output]
LONG: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Complete]:
    tokenizer = Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))
    engine, _ = text_engine(tokenizer)
    loop = asyncio.new_event_loop()
    completer = Completer(engine.client_on(loop), tokenizer)

    def run(request: CompletionRequest) -> Output:
        [output] = loop.run_until_complete(asyncio.wait_for(completer.generate(request), 30))
        return output

    yield run
    engine.close()
    loop.close()


def facts(output: Output, given: int = 0) -> tuple[Any, ...]:
    stats = output.stats
    return (
        output.text, output.tokens, output.finish, output.logprobs[given:], output.tops[given:],
        output.probes[given:], stats.prompt_tokens,
    )  # fmt: skip


CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"seed": 3},
    "penalties": {"seed": 3, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
    "at least so many": {"seed": 4, "min_new_tokens": 12, "ignore_eos": False},
}


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_text_goes_on_from_each_of_its_tokens(
    case: str, scored: bool, complete: Complete
) -> None:
    logprobs = Logprobs(top=2, probe=(5,)) if scored else None
    request = CompletionRequest(PROMPT, SamplingParams(**{**LONG, **CASES[case]}), logprobs)
    whole = complete(request)
    assert len(whole.tokens) > 3
    for given in range(1, len(whole.tokens) + 1):  # the last one: it has ended
        found = complete(replace(request, generated=ints(whole.tokens[:given])))
        assert facts(found) == facts(whole, given)


@pytest.mark.parametrize("trim", [True, False])
def test_stops_and_end_tokens_among_the_given(trim: bool, complete: Complete) -> None:
    free = CompletionRequest(PROMPT, SamplingParams(seed=9, **LONG))
    whole = complete(free)
    begin = next(i for i in range(8, 200) if whole.text[i : i + 6].isascii())
    stops = {"stop": (whole.text[begin : begin + 6],), "stop_token_ids": (whole.tokens[11],)}
    for name, value in stops.items():
        changes: dict[str, Any] = {name: value, "no_stop_trim": not trim}
        sampling = replace(free.sampling, **changes)
        request = replace(free, sampling=sampling)
        want = complete(request)
        assert want.finish is not None
        assert want.finish.reason == "stop"
        for given in range(1, len(want.tokens) + 1):
            found = complete(replace(request, generated=ints(want.tokens[:given])))
            assert facts(found) == facts(want)


REFUSED = [
    ({"n": 2}, {}, [5], "n must be 1"),
    ({"max_new_tokens": 0}, {}, [5], "max_new_tokens at least 1"),
    ({"max_new_tokens": 2}, {}, [5, 6, 7], "output_ids has 3 tokens, of at most 2"),
    ({}, {"logprobs": Logprobs(start=0)}, [5], "logprob_start_len is 0; with output_ids"),
    ({}, {}, [-1], "output_ids holds -1; ids are 0 to"),
    ({}, {}, [1 << 30], "output_ids holds 1073741824; ids are 0 to"),
]


@pytest.mark.parametrize(("sampling", "fields", "given", "message"), REFUSED)
def test_what_cannot_go_on_is_refused(
    sampling: dict[str, Any],
    fields: dict[str, Any],
    given: list[int],
    message: str,
    complete: Complete,
) -> None:
    params = SamplingParams(**{**LONG, **sampling})
    request = CompletionRequest(PROMPT, params, generated=ints(given), **fields)
    with pytest.raises(RequestError, match=message):
        complete(request)
