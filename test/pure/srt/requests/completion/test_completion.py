"""The completion program over the real scheduler and memory, with a worker that needs no model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from helpers.text_worker import drawn, logprob_of, text_engine
from helpers.toy_tokenizer import byte_level
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.ints import Ints, ints
from sglang.srt.engine.client import EngineLost
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import (
    CompletionRequest,
    Logprobs,
    sampling_from,
)
from sglang.srt.requests.completion.merge_streams import merge
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

PROMPT = ints(range(40, 60))
Body = Callable[[Completer], Awaitable[Any]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def play(tokenizer: Tokenizer) -> Callable[..., Any]:
    """Runs a coroutine function with a Completer on a fresh engine; checks that it ends idle.
    ``permits``: each pass takes one and waits for it."""

    def run(body: Body, permits: threading.Semaphore | None = None, **options: Any) -> Any:
        engine, worker = text_engine(tokenizer, **options)
        if permits is not None:
            compute = worker.run

            def run_with_permit(batch: Batch) -> StepResult:
                permits.acquire()
                return compute(batch)

            worker.run = run_with_permit  # type: ignore[method-assign]

        async def main() -> Any:
            completion = Completer(engine.client_on(asyncio.get_running_loop()), tokenizer)
            result = await body(completion)
            await idle(completion)
            return result

        try:
            return asyncio.run(main())
        finally:
            if permits is not None:
                permits.release(1000)
            engine.close()

    return run


async def idle(completion: Completer) -> dict[str, Any]:
    """The statistics once nothing is running; asserts that the books balance."""
    assert completion.pending == 0
    assert not completion.runs
    for _ in range(200):
        stats = (await completion.control("stats")).data
        if stats["running"] == stats["waiting"] == stats["contexts"] == 0:
            break
        await asyncio.sleep(0.01)
    assert stats["running"] == stats["waiting"] == stats["contexts"] == 0
    assert stats["free_tokens"] + stats["evictable_tokens"] == stats["total_tokens"]
    assert stats["protected_tokens"] == 0
    assert stats["bad_verbs"] == 0
    assert stats["received"] == stats["finished"] + stats["aborted"] + stats["failed"]
    return stats


def model_text(tokenizer: Tokenizer, prompt: Ints, count: int) -> list[int]:
    """Tokens that the worker samples greedily."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(drawn(tokens, tokenizer.vocab_size))
    return tokens[len(prompt) :]


def greedy(**changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, **{"max_new_tokens": 24, "ignore_eos": True, **changes})


def test_text_tokens_and_usage(play: Any, tokenizer: Tokenizer) -> None:
    async def body(completion: Completer) -> list[Output]:
        request = CompletionRequest(PROMPT, greedy())
        return [*await completion.generate(request), *await completion.generate(request)]

    first, again = play(body)
    want = model_text(tokenizer, PROMPT, 24)
    for output in (first, again):
        assert output.tokens == want
        assert output.text == tokenizer.decode(want, skip_special=True)
        assert output.finish.reason == "length"
        assert (output.stats.prompt_tokens, output.completion_tokens) == (20, 24)
        assert output.released == 24
    assert first.stats.cached_tokens == 0
    assert again.stats.cached_tokens == 19  # all but the token whose logits are needed


def test_a_stream_grows_to_the_same_text(play: Any, tokenizer: Tokenizer) -> None:
    permits = threading.Semaphore(1)
    counts: list[int] = []

    async def body(completion: Completer) -> Output:
        seen = ""
        request = CompletionRequest(PROMPT, greedy(max_new_tokens=60))
        async with aclosing(completion.stream(request)) as outputs:
            async for output in outputs:
                assert output.text.startswith(seen)
                seen = output.text
                counts.append(len(output.tokens))
                permits.release()  # a pass runs when the output of the one before was read
        return output

    output = play(body, permits=permits)
    assert list(dict.fromkeys(counts)) == list(range(1, 61))  # the end may come by itself
    assert output.text == tokenizer.decode(model_text(tokenizer, PROMPT, 60), skip_special=True)


def test_stops_are_cut_exactly_or_kept(play: Any, tokenizer: Tokenizer) -> None:
    tokens = model_text(tokenizer, PROMPT, 60)
    whole = tokenizer.decode(tokens)
    at = next(i for i in range(20, len(whole)) if whole[i : i + 3].isascii())
    stop = whole[at : at + 3]  # bytes of any tokens
    cut = whole.index(stop)

    async def body(completion: Completer) -> list[Output]:
        base = greedy(max_new_tokens=60, skip_special_tokens=False)
        requests = [
            CompletionRequest(PROMPT, replace_params(base, stop=(stop, "never"))),
            CompletionRequest(PROMPT, replace_params(base, stop=(stop,), no_stop_trim=True)),
            CompletionRequest(PROMPT, replace_params(base, stop_token_ids=(tokens[7],))),
            CompletionRequest(
                PROMPT, replace_params(base, stop_token_ids=(tokens[7],), no_stop_trim=True)
            ),
        ]
        for request in requests:  # a stream never shows what is cut later
            seen = ""
            async with aclosing(completion.stream(request)) as outputs:
                async for output in outputs:
                    assert output.text.startswith(seen)
                    seen = output.text
        return [(await completion.generate(request))[0] for request in requests]

    trimmed, kept, by_token, with_token = play(body)
    assert trimmed.text == whole[:cut]
    assert (trimmed.finish.reason, trimmed.finish.matched) == ("stop", stop)
    assert kept.text.startswith(whole[:cut] + stop)
    end = tokens.index(tokens[7])
    assert by_token.text == tokenizer.decode(tokens[:end])
    assert by_token.tokens == tokens[: end + 1]
    assert by_token.released == end
    assert by_token.finish.matched == tokens[7]
    assert with_token.text == tokenizer.decode(tokens[: end + 1])


def replace_params(params: SamplingParams, **changes: Any) -> SamplingParams:

    return replace(params, **changes)


def test_n_completions_share_the_prompt(play: Any) -> None:
    async def body(completion: Completer) -> tuple[list[Output], list[Output], Output, Any]:
        params = SamplingParams(n=4, seed=7, max_new_tokens=12, ignore_eos=True)
        before = (await completion.control("stats")).data["computed_tokens"]
        first = await completion.generate(CompletionRequest(PROMPT, params))
        spent = (await completion.control("stats")).data["computed_tokens"] - before
        again = await completion.generate(CompletionRequest(PROMPT, params))
        alone = (await completion.generate(CompletionRequest(PROMPT, replace_params(params, n=1))))[
            0
        ]
        return first, again, alone, spent

    first, again, alone, spent = play(body)
    assert [output.index for output in first] == [0, 1, 2, 3]
    assert len({tuple(output.tokens) for output in first}) == 4
    assert [o.tokens for o in first] == [o.tokens for o in again]
    assert alone.tokens == first[0].tokens
    assert {o.stats.cached_tokens for o in again} == {20}
    assert spent <= 20 + 4 * 12  # the prompt once


def test_max_new_tokens_zero_computes_the_prompt_alone(play: Any, tokenizer: Tokenizer) -> None:
    async def body(completion: Completer) -> list[Output]:
        plain = await completion.generate(CompletionRequest(PROMPT, greedy(max_new_tokens=0)))
        scored = CompletionRequest(
            PROMPT, greedy(max_new_tokens=0), Logprobs(top=2, start=0, probe=(5, 6))
        )
        return plain + await completion.generate(scored)

    plain, scored = play(body)
    assert (plain.text, plain.tokens, plain.finish.reason) == ("", [], "length")
    found = scored.prompt_logprobs
    want = [logprob_of(PROMPT[:i], PROMPT[i], tokenizer.vocab_size) for i in range(1, 20)]
    assert found.logprobs == [None, *want]
    assert [len(top) for top in found.tops[1:]] == [2] * 19
    assert [len(probe) for probe in found.probes[1:]] == [2] * 19


@pytest.mark.parametrize("n", [1, 3])
def test_logprobs(play: Any, tokenizer: Tokenizer, n: int) -> None:
    async def body(completion: Completer) -> list[Output]:
        request = CompletionRequest(
            PROMPT, greedy(n=n, max_new_tokens=5), Logprobs(top=3, start=15, probe=(9,))
        )
        await completion.generate(request)
        return await completion.generate(request)

    for output in play(body):
        assert output.prompt_logprobs.start == 15
        assert output.prompt_logprobs.logprobs == [
            logprob_of(PROMPT[:i], PROMPT[i], tokenizer.vocab_size) for i in range(15, 20)
        ]
        whole = [*PROMPT, *output.tokens]
        assert output.logprobs == [
            logprob_of(whole[:i], whole[i], tokenizer.vocab_size) for i in range(20, 25)
        ]
        assert [len(top) for top in output.tops] == [3] * 5
        assert [len(probe) for probe in output.probes] == [1] * 5
        assert output.stats.cached_tokens == 14  # scores limit the hit


def test_max_new_tokens_is_cut_to_the_room(play: Any) -> None:
    async def body(completion: Completer) -> list[Output]:
        return await completion.generate(CompletionRequest(PROMPT, greedy(max_new_tokens=2**63)))

    (output,) = play(body, context=50)
    assert output.completion_tokens == 30
    assert output.finish.reason == "length"


BAD: list[tuple[CompletionRequest, str, str]] = [
    (CompletionRequest(ints()), "prompt", "empty"),
    (CompletionRequest(ints([1, -1])), "prompt", "-1"),
    (CompletionRequest(ints([1, 10_000])), "prompt", "10000"),
    (CompletionRequest(ints([1] * 65)), "prompt", r"65 tokens .* 64"),
    (CompletionRequest(ints([1] * 64)), "prompt", "no room"),
    (CompletionRequest(PROMPT, SamplingParams(n=10**9)), "n", "128"),
    (CompletionRequest(PROMPT, SamplingParams(max_new_tokens=-1)), "max_new_tokens", "-1"),
    (CompletionRequest(PROMPT, SamplingParams(temperature=float("nan"))), "temperature", "nan"),
    (CompletionRequest(PROMPT, SamplingParams(top_p=0.0)), "top_p", "0"),
    (CompletionRequest(PROMPT, SamplingParams(seed=2**64)), "seed", "64-bit"),
    (CompletionRequest(PROMPT, SamplingParams(stop=("",))), "stop", "empty"),
    (CompletionRequest(PROMPT, SamplingParams(stop=("x",) * 10**5)), "stop", "100000"),
    (CompletionRequest(PROMPT, SamplingParams(stop=("\ud800",))), "stop", "surrogate"),
    (CompletionRequest(PROMPT, SamplingParams(logit_bias={10**6: 1.0})), "logit_bias", "1000000"),
    (CompletionRequest(PROMPT, SamplingParams(stop_token_ids=(-1,))), "stop_token_ids", "-1"),
    (CompletionRequest(PROMPT, logprobs=Logprobs(top=10**6)), "top_logprobs", "1000000"),
    (CompletionRequest(PROMPT, logprobs=Logprobs(start=21)), "logprob_start_len", "21"),
    (CompletionRequest(PROMPT, logprobs=Logprobs(probe=(-5,))), "token_ids_logprob", "-5"),
    (CompletionRequest(PROMPT, priority=2**40), "priority", "32"),
]


def test_bad_requests_are_refused_before_the_engine(play: Any) -> None:
    async def body(completion: Completer) -> dict[str, Any]:
        for request, param, words in BAD:
            with pytest.raises(RequestError, match=words) as caught:
                await completion.generate(request)
            assert caught.value.param == param, request
        return await idle(completion)

    stats = play(body, context=64)
    assert stats["received"] == stats["rejected"] == 0


def test_an_invalid_stop_regex_is_the_engines_refusal(play: Any) -> None:
    async def body(completion: Completer) -> None:
        with pytest.raises(RequestError) as caught:
            await completion.generate(CompletionRequest(PROMPT, greedy(stop_regex=("(",))))
        assert caught.value.code == "invalid_value"
        assert (
            len(await completion.generate(CompletionRequest(PROMPT, greedy(stop_regex=("zz+",)))))
            == 1
        )

    play(body)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("after", [0, 1, 5, 20])
@pytest.mark.parametrize("how", ["aclose", "cancel", "abort"])
def test_leaving_at_any_moment_frees_everything(play: Any, n: int, after: int, how: str) -> None:
    params = SamplingParams(n=n, max_new_tokens=500, ignore_eos=True)
    # An output has all tokens that have come: without permits a slow reader would see few outputs.
    permits = threading.Semaphore(2)  # the prompt, and the first tokens

    async def body(completion: Completer) -> None:
        reached = asyncio.Event()

        async def consume() -> list[str]:
            seen: dict[int, Output] = {}
            count = 0
            if after == 0:
                reached.set()
            async with aclosing(
                completion.stream(CompletionRequest(PROMPT, params, rid="me"))
            ) as outputs:
                async for output in outputs:
                    seen[output.index], count = output, count + 1
                    if count < after:
                        permits.release()
                    elif count == after:
                        reached.set()
                        if how == "aclose":
                            break
            return [o.finish.reason for o in seen.values() if o.finish]

        task = asyncio.ensure_future(consume())
        await reached.wait()
        if how == "abort":
            while completion.abort("me") == 0:
                await asyncio.sleep(0)
            permits.release(1000)
            assert await task == ["abort"] * n
        elif how == "cancel" or after == 0:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            assert await task == []
        permits.release(1000)
        await idle(completion)

    play(body, permits=permits)


def test_abort_by_name_leaves_others(play: Any) -> None:
    permits = threading.Semaphore(0)

    async def body(completion: Completer) -> None:
        tasks = [
            asyncio.ensure_future(
                completion.generate(CompletionRequest(PROMPT, greedy(max_new_tokens=200), rid=rid))
            )
            for rid in ("a", "b", "b")
        ]
        while completion.pending < 3:
            await asyncio.sleep(0)
        assert completion.abort("b") == 2
        permits.release(1000)
        ends = [(await task)[0].finish for task in tasks]
        reasons = [end and end.reason for end in ends]
        assert reasons == ["length", "abort", "abort"]
        assert completion.abort("a") == completion.abort() == 0

    play(body, permits=permits)


def test_a_full_queue_refuses(play: Any) -> None:
    async def body(completion: Completer) -> list[Any]:
        tasks = [
            completion.generate(CompletionRequest(PROMPT, greedy(max_new_tokens=50)))
            for _ in range(12)
        ]
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = play(body, running=2, queued=4)
    refused = [r for r in results if isinstance(r, RequestError)]
    assert refused
    assert {error.code for error in refused} == {"queue_full"}
    assert len(results) - len(refused) >= 4


def test_a_lost_engine_ends_what_is_pending(tokenizer: Tokenizer) -> None:
    async def main() -> None:
        engine, _ = text_engine(tokenizer)
        completion = Completer(engine.client_on(asyncio.get_running_loop()), tokenizer)
        task = asyncio.ensure_future(
            completion.generate(CompletionRequest(PROMPT, greedy(n=2, max_new_tokens=900)))
        )
        while completion.pending == 0:
            await asyncio.sleep(0)
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineLost):
            await task
        with pytest.raises(EngineLost):
            await completion.generate(CompletionRequest(PROMPT))
        assert completion.pending == 0

    asyncio.run(main())


def test_two_names_of_one_parameter_must_agree() -> None:
    assert sampling_from({"max_tokens": 5, "max_new_tokens": 5}).max_new_tokens == 5
    with pytest.raises(RequestError, match=r"^seed and sampling_seed are names of one thing"):
        sampling_from({"seed": 0, "sampling_seed": 2**63})


def test_sampling_from_a_dict() -> None:
    params = sampling_from({"stop": "x", "sampling_seed": 3, "max_tokens": 5, "top_p": None,
                            "logit_bias": {"7": 1}, "stop_token_ids": [1]})  # fmt: skip
    assert params == SamplingParams(
        stop=("x",), seed=3, max_new_tokens=5, logit_bias={7: 1.0}, stop_token_ids=(1,)
    )
    bad: list[tuple[Any, str]] = [
        ({"temprature": 1}, "temperature"),
        ({"regex": "a+", "ebnf": "x"}, "regex and ebnf exclude one another"),
        ({"top_p": "high"}, "top_p"),
        ({"n": 1.5}, "n"),
        ({"logit_bias": {"x": 1}}, "x"),
    ]
    for settings, words in bad:
        with pytest.raises(RequestError, match=words):
            sampling_from(settings)
    assert sampling_from({"regex": None}) == SamplingParams()


def test_merge_closes_every_stream_when_one_fails() -> None:
    closed = []

    async def count(name: int, limit: int) -> Any:
        try:
            for i in range(limit):
                await asyncio.sleep(0)
                yield i
            if name == 1:
                raise ValueError("stream one")
        finally:
            closed.append(name)

    async def main() -> None:
        seen: list[Any] = []

        async def read() -> None:
            async for item in merge([count(0, 10**9), count(1, 3), count(2, 10**9)]):
                seen.append(item)

        with pytest.raises(ValueError, match="stream one"):
            await read()
        assert [item for item in seen if item[0] == 1] == [(1, 0), (1, 1), (1, 2)]
        assert sorted(closed) == [0, 1, 2]

    asyncio.run(main())


def test_verification_changes_no_request(tokenizer: Tokenizer) -> None:
    engine, _ = text_engine(tokenizer)
    try:
        request = CompletionRequest(PROMPT, SamplingParams(top_k=10**9, max_new_tokens=10**9))
        found = request.verified(engine.info)
        assert (found.sampling.top_k, found.sampling.max_new_tokens) == (-1, 1004)
        assert request == replace(request)
        assert request.sampling.top_k == 10**9
    finally:
        engine.close()
