"""Choices scored as wholes, over the real scheduler and memory, against direct computation."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.text_worker import logprob_of, text_engine
from helpers.toy_tokenizer import byte_level, sentencepiece
from sglang.ir.constraint import Constraint
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import ints
from sglang.srt.core.segments import Segment
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest, Logprobs
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.completion.whole_choices import pick
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

PROMPT = ints(range(40, 60))
CHOICES = ["fox", "the lazy dog", "Grüße aus Köln", " dog", "f"] + [f"x{i}" for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


def request(choices: list[str] = CHOICES, **changes: Any) -> CompletionRequest:
    own = {k: changes.pop(k) for k in ("logprobs", "segments", "rid") if k in changes}
    constraint = Constraint("choices", json.dumps(choices))
    sampling = SamplingParams(constraint=constraint, **changes)
    return CompletionRequest(PROMPT, sampling, score_choices=True, **own)


def outputs(
    tokenizer: Tokenizer, *requests: CompletionRequest
) -> tuple[list[list[Output]], dict[str, Any]]:
    """The answers, one after the other, and the statistics when all is idle."""
    engine, _ = text_engine(tokenizer)

    async def main() -> tuple[list[list[Output]], dict[str, Any]]:
        completion = Completer(engine.client_on(asyncio.get_running_loop()), tokenizer)
        found = [await completion.generate(request) for request in requests]
        for _ in range(200):
            stats = (await completion.control("stats")).data
            if stats["contexts"] == 0:
                break
            await asyncio.sleep(0.01)
        assert stats["contexts"] == stats["running"] == stats["bad_verbs"] == 0
        assert stats["free_tokens"] + stats["evictable_tokens"] == stats["total_tokens"]
        return found, stats

    try:
        return asyncio.run(main())
    finally:
        engine.close()


def total(tokenizer: Tokenizer, text: str) -> float:
    tokens = list(tokenizer.encode(text, False))
    seen = [*PROMPT, *tokens]
    return math.fsum(
        logprob_of(seen[: len(PROMPT) + i], token, tokenizer.vocab_size)
        for i, token in enumerate(tokens)
    )


def test_the_best_is_taken_or_one_is_drawn_by_its_score(tokenizer: Tokenizer) -> None:
    want = [total(tokenizer, text) for text in CHOICES]
    sampled = request(seed=7, temperature=2.0, n=3)
    (greedy, drawn), stats = outputs(tokenizer, request(temperature=0.0), sampled)
    (best,) = greedy
    assert best.choice_logprobs == pytest.approx(want)
    assert best.text == CHOICES[want.index(max(want))]
    assert best.tokens == list(tokenizer.encode(best.text, False))
    assert best.finish is not None
    assert (best.finish.reason, best.finish.matched) == ("stop", None)
    assert best.completion_tokens == best.released == len(best.tokens)
    assert best.stats.forward_passes >= 2  # the prompt's, and the choice's own
    assert [output.index for output in drawn] == [0, 1, 2]
    assert drawn[0].text == CHOICES[pick(want, sampled.sampling)]
    assert all(output.choice_logprobs == best.choice_logprobs for output in drawn)
    assert drawn[0].logprobs == []
    assert stats["received"] <= 2 * 2  # a prompt, and its pages for a tree


def test_log_probabilities_of_the_choice(tokenizer: Tokenizer) -> None:
    wanted = request(temperature=0.0, logprobs=Logprobs(top=2, start=5, probe=(3,)))
    ((output,),), _ = outputs(tokenizer, wanted)
    count = len(output.tokens)
    assert math.fsum(output.logprobs) == pytest.approx(max(output.choice_logprobs))
    assert [len(output.tops), len(output.probes), len(output.logprobs)] == [count] * 3
    assert [len(top) for top in output.tops] == [2] * count
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs.logprobs) == len(PROMPT) - 5


def test_what_has_no_room(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"choices has one of \d+ tokens; at most 2 can follow"):
        outputs(tokenizer, request(max_new_tokens=2))
    with pytest.raises(RequestError, match="top_p works on tokens") as caught:
        outputs(tokenizer, request(top_p=0.5))
    assert caught.value.param == "top_p"
    ((nothing,),), _ = outputs(tokenizer, request(max_new_tokens=0))
    assert nothing.finish is not None
    assert (nothing.text, nothing.finish.reason) == ("", "length")


def test_behind_texts_that_are_side_by_side(tokenizer: Tokenizer) -> None:
    segments = (Segment(5, 5), Segment(10, 5), Segment(15, 15))
    ((output,),), _ = outputs(tokenizer, request(temperature=0.0, segments=segments))
    assert output.text in CHOICES


def test_choices_are_written_as_inside_a_text(tmp_path: Path) -> None:
    """A tokenizer that begins every text with a space does not begin a choice with one."""
    tokenizer = Tokenizer(sentencepiece(tmp_path))
    ((output,),), _ = outputs(tokenizer, request(["hello", " world"], temperature=0.0))
    texts = [b"".join(tokenizer.token_bytes[t] for t in output.tokens)]
    assert texts == [output.text.encode()]


@pytest.fixture
def slow(tokenizer: Tokenizer) -> Iterator[Any]:
    engine, _ = text_engine(tokenizer, seconds=0.01)
    yield engine
    engine.close()


def test_an_abort_in_the_middle(tokenizer: Tokenizer, slow: Any) -> None:
    async def main() -> list[Output]:
        completion = Completer(slow.client_on(asyncio.get_running_loop()), tokenizer)
        wanted = request(rid="mine", n=2, logprobs=Logprobs())  # each choice is a request
        task = asyncio.ensure_future(completion.generate(wanted))
        while completion.pending < 2:
            await asyncio.sleep(0)
        assert completion.abort("mine") == 1
        found = await task
        assert completion.pending == 0
        return found

    found = asyncio.run(main())
    assert [o.finish and o.finish.reason for o in found] == ["abort", "abort"]
