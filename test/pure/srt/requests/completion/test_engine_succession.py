"""Requests whose engine is lost go on with the next one, as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from helpers.text_worker import text_engine
from helpers.toy_tokenizer import byte_level
from sglang.ir.constraint import Constraint
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.call_hints import CallHint
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Distribution, Embed, Verb
from sglang.srt.engine.client import Client, EngineLost, Inbox
from sglang.srt.engine.local import LocalEngine
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest, Logprobs
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.completion.resume_order import MORE
from sglang.srt.requests.completion.serving_engines import Assignment, OneEngine
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

PROMPT = ints(range(40, 60))
SECONDS = 0.002  # a pass
LONG: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


class Engines(OneEngine):
    """Engines one after the other; the next one is started where one is lost and ``open``."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.started: list[LocalEngine] = []
        self.adapters: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    def start(self) -> Client:
        engine, _ = text_engine(self.tokenizer, seconds=SECONDS)
        self.started.append(engine)
        return engine.client_on(asyncio.get_running_loop())

    async def reassign(self, request: CompletionRequest, client: Client) -> Assignment:
        await self.open.wait()
        if self.client is client:
            self.client = self.start()
        self.adapters.append(request.adapter)
        return Assignment(self.client)

    def completer(self, most: int = 1) -> Completer:
        self.client = self.start()
        completer = Completer(self, self.tokenizer, seed=7)
        completer.max_resumes = most
        return completer

    async def lose(self) -> None:
        await asyncio.to_thread(self.started[-1].close)


def play(tokenizer: Tokenizer, body: Callable[[Engines], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        engines = Engines(tokenizer)
        try:
            return await asyncio.wait_for(body(engines), 100)
        finally:
            for engine in engines.started:
                engine.close()

    return asyncio.run(main())


def facts(output: Output) -> tuple[Any, ...]:
    """The client's view of a completion, without its times and passes."""
    stats = output.stats
    return (
        output.index, output.text, output.tokens, output.released, output.logprobs, output.tops,
        output.probes, output.prompt_logprobs, output.choice_logprobs, output.finish,
        stats.prompt_tokens, stats.completion_tokens,
    )  # fmt: skip


async def outputs(
    completion: Completer, request: CompletionRequest, cuts: list[int], engines: Engines
) -> list[tuple[Any, ...]]:
    """The completions; an engine is lost once as many tokens as the next of ``cuts`` have come."""
    found: dict[int, Output] = {}
    texts: dict[int, str] = {}
    left = list(cuts)
    async with aclosing(completion.stream(request)) as stream:
        if left and left[0] == 0:
            asyncio.get_running_loop().call_soon(engines.started[-1].close)
            left.pop(0)
        async for output in stream:
            before = texts.get(output.index, "")
            assert output.text.startswith(before), "a text that was sent has changed"
            texts[output.index], found[output.index] = output.text, output
            if left and sum(len(each.tokens) for each in found.values()) >= left[0]:
                left.pop(0)
                await engines.lose()
    return [facts(found[index]) for index in sorted(found)]


CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"seed": 3},
    "sampled without a seed": {},
    "penalties": {"seed": 3, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
    "at least so many": {"seed": 4, "min_new_tokens": 50, "ignore_eos": False},
    "several": {"seed": 5, "n": 3},
    "several without a seed": {"n": 3},
}


@pytest.mark.parametrize("cut", [0, 1, 17])
@pytest.mark.parametrize("case", CASES)
def test_a_request_goes_on_with_the_next_engine(case: str, cut: int, tokenizer: Tokenizer) -> None:
    sampling = SamplingParams(**{**LONG, **CASES[case]})
    request = CompletionRequest(PROMPT, sampling, logprobs=Logprobs(start=2, top=2, probe=(5,)))

    async def body(engines: Engines) -> None:
        whole = await outputs(engines.completer(), request, [], engines)
        found = await outputs(engines.completer(), request, [cut], engines)
        assert found == whole
        assert len(engines.started) == 3, "no engine was lost"
        assert engines.pending == 0

    play(tokenizer, body)


def test_a_stop_is_found_across_the_cut(tokenizer: Tokenizer) -> None:
    """The engine is lost shortly before the stop, or inside it."""

    async def body(engines: Engines) -> None:
        free = CompletionRequest(PROMPT, SamplingParams(seed=9, **LONG))
        whole = (await engines.completer().generate(free))[0]
        text = whole.text
        begin = next(i for i in range(40, 200) if text[i : i + 6].isascii())
        stop = text[begin : begin + 6]
        end = len(whole.tokens) * (begin + 3) // len(text)  # about the token in its midst
        for at in range(end - 5, end):
            sampling = replace(free.sampling, stop=(stop,))
            request = replace(free, sampling=sampling)
            want = await outputs(engines.completer(), request, [], engines)
            assert await outputs(engines.completer(), request, [at], engines) == want
            assert want[0][1] == text[: text.index(stop)]
        assert engines.adapters, "no engine was lost"

    play(tokenizer, body)


def test_choices_that_are_scored_are_scored_again(tokenizer: Tokenizer) -> None:
    sampling = SamplingParams(max_new_tokens=8, temperature=0.0)
    sampling = replace(sampling, constraint=Constraint("choices", '["yes", "no", "perhaps"]'))
    request = CompletionRequest(PROMPT, sampling, score_choices=True)

    async def body(engines: Engines) -> None:
        whole = await outputs(engines.completer(), request, [], engines)
        assert await outputs(engines.completer(), request, [0], engines) == whole
        assert len(engines.started) == 3

    play(tokenizer, body)


@pytest.mark.parametrize("goal", [Embed(), Distribution(top=3)])
def test_readings_are_read_again(goal: Embed | Distribution, tokenizer: Tokenizer) -> None:
    requests = [CompletionRequest(PROMPT[:length]) for length in (5, 9)]

    async def body(engines: Engines) -> None:
        whole = await engines.completer().read(requests, goal)
        completion = engines.completer()
        reading = asyncio.ensure_future(completion.read(requests, goal))
        while not completion.pending:
            await asyncio.sleep(0)
        await engines.lose()
        for one, other in zip(await reading, whole, strict=True):
            assert (one.top, one.embedding) == (other.top, other.embedding)

    play(tokenizer, body)


HINT = CallHint("app", "latency", tpot_ms=40.0, group=2, stage=1)


@pytest.mark.parametrize("case", ["one", "several", "choices", "readings"])
def test_every_goal_carries_the_hint(
    case: str, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of forks and choices, and on the next engine."""
    request = CompletionRequest(
        PROMPT, SamplingParams(seed=3, **LONG), logprobs=Logprobs(start=2),
        hint=HINT, arrived=12.5,
    )  # fmt: skip
    if case == "several":
        request = replace(request, sampling=replace(request.sampling, n=3))
    if case == "choices":
        constraint = Constraint("choices", '["yes", "no"]')
        sampling = SamplingParams(max_new_tokens=8, constraint=constraint)
        request = replace(request, sampling=sampling, score_choices=True)
    sent: list[Advance] = []
    submit = Client.submit

    def recorded(self: Client, request: int, verbs: Sequence[Verb], name: str = "") -> Inbox:
        sent.extend(verb for verb in verbs if isinstance(verb, Advance))
        return submit(self, request, verbs, name)

    monkeypatch.setattr(Client, "submit", recorded)

    async def body(engines: Engines) -> None:
        if case == "readings":
            await engines.completer().read([request, request], Embed())
        else:
            await outputs(engines.completer(), request, [0 if case == "choices" else 5], engines)
            assert len(engines.started) == 2, "no engine was lost"

    play(tokenizer, body)
    assert len(sent) >= {"one": 2, "several": 7, "choices": 4, "readings": 2}[case]
    assert {(verb.hint, verb.arrived) for verb in sent} == {(HINT, 12.5)}


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_request_survives_so_many_engines(most: int, tokenizer: Tokenizer) -> None:
    """The request begins to answer in each of them."""
    request = CompletionRequest(PROMPT, SamplingParams(seed=3, **LONG))
    survived = most + MORE if most else 0
    cuts = [3, 12, 21, 30, 39][: survived + 1]

    async def body(engines: Engines) -> None:
        whole = await outputs(engines.completer(), request, [], engines)
        assert await outputs(engines.completer(most), request, cuts[:survived], engines) == whole
        completion = engines.completer(most)
        with pytest.raises(EngineLost, match=rf"may continue {most} times \(--max-resumes\)"):
            await outputs(completion, request, cuts, engines)
        assert completion.pending == 0
        assert not completion.runs

    play(tokenizer, body)


def test_an_abort_ends_the_wait_for_an_engine(tokenizer: Tokenizer) -> None:
    sampling = SamplingParams(seed=3, n=2, **LONG)
    request = CompletionRequest(PROMPT, sampling, rid="one")

    async def body(engines: Engines) -> None:
        completion = engines.completer()
        engines.open.clear()
        task = asyncio.ensure_future(completion.generate(request))
        await asyncio.sleep(10 * SECONDS)
        await engines.lose()
        await asyncio.sleep(10 * SECONDS)
        assert not task.done()
        assert completion.abort("one") == 1
        assert [output.finish.reason for output in await task if output.finish] == ["abort"] * 2
        assert completion.pending == 0

    play(tokenizer, body)


def test_a_request_that_comes_meanwhile_is_told(tokenizer: Tokenizer) -> None:
    async def body(engines: Engines) -> None:
        completion = engines.completer()
        await engines.lose()
        with pytest.raises(EngineLost):
            await completion.generate(CompletionRequest(PROMPT))
        with pytest.raises(EngineLost):
            await completion.read([CompletionRequest(PROMPT)], Embed())

    play(tokenizer, body)


def test_nothing_is_read_of_nothing(tokenizer: Tokenizer) -> None:
    async def body(engines: Engines) -> None:
        assert await engines.completer().read([], Embed()) == []

    play(tokenizer, body)


def test_the_adapter_is_waited_for(tokenizer: Tokenizer) -> None:
    request = CompletionRequest(PROMPT, SamplingParams(**LONG), adapter="mine")

    async def body(engines: Engines) -> None:
        with pytest.raises(RequestError, match="not loaded"):
            await outputs(engines.completer(), request, [0], engines)
        assert engines.adapters in ([], ["mine"])

    play(tokenizer, body)
