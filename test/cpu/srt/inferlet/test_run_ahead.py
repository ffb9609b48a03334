"""Straight loops that request forwards before the tokens that these begin with are read: the texts
are those without, and passes are full."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.inferlet_runs import EnginePrograms, Programs, embedded_model
from sglang.inferlet import CallError, Context
from sglang.srt.tokenizer.tokenizer import EMBEDDED, Tokenizer

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
)
PROMPT = "The weather report says that tomorrow"


@pytest.fixture(scope="module", params=["pages of 1", "pages of 8", "engine"])
def programs(request: pytest.FixtureRequest) -> Iterator[Programs | EnginePrograms]:
    if request.param != "engine":
        size = 1 if request.param == "pages of 1" else 8
        yield Programs(embedded_model(), Tokenizer.load(), size)
        return
    found = EnginePrograms(dtype="float32", max_total_tokens=4096)
    yield found
    found.engine.shutdown()


async def one_by_one(text: Any, count: int, params: dict[str, Any], ends: Any) -> None:
    """``run_ahead`` without futures."""
    for _ in range(count):
        token = await text.sample(params)
        if token in ends:
            return
        text.extend([token])


def generation(ahead: int, params: dict[str, Any], end: int = -1) -> Any:
    """A program: two texts one after the other, a fork between them. It returns the tokens, and
    the distribution behind them."""

    async def main(ctx: Any) -> Any:
        random.seed(3)
        text = await Context(ctx).fill(PROMPT)
        start = len(text.tokens)
        for count, ends in ((9, (end,)), (4, ()), (0, ())):
            if ahead:
                await text.run_ahead(count, params, ends, ahead)
            else:
                await one_by_one(text, count, params, ends)
        [fork] = await text.fork(1)
        if ahead:
            await fork.run_ahead(3, params, (), ahead)
        else:
            await one_by_one(fork, 3, params, ())
        dist = await text.next_dist(5)
        return [text.tokens[start:], fork.tokens[start:], list(dist.ids), list(dist.logprobs)]

    return main


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.9}])
def test_texts_are_those_without_futures(
    programs: Programs | EnginePrograms, params: dict[str, Any]
) -> None:
    plain = programs.one(generation(0, params))
    computed = programs.tokens
    cut = programs.one(generation(0, params, plain[0][4]))
    cut_computed = programs.tokens
    assert plain[0] != cut[0]
    for ahead in (1, 2, 5):
        found = programs.one(generation(ahead, params))
        assert programs.tokens == computed  # nothing is computed in vain
        assert found[:3] == plain[:3]
        assert found[3] == pytest.approx(plain[3], abs=1e-4)
        found = programs.one(generation(ahead, params, plain[0][4]))
        assert found[:3] == cut[:3]
        assert cut_computed < programs.tokens <= cut_computed + ahead


def test_generation_to_an_end_token_runs_ahead(programs: Programs | EnginePrograms) -> None:
    """``generate_until`` uses it where nothing looks at the tokens one by one."""

    async def main(ctx: Any) -> Any:
        texts = []
        for looks in (False, True):
            text = await Context(ctx).fill(PROMPT)

            async def never(context: Any, start: int) -> bool:
                return False

            texts.append(await text.generate_until(12, stop=never if looks else None))
            await text.free()
        made = ctx._turns._count
        return [*texts, made]

    ahead, plain, _ = programs.one(main)
    assert ahead == plain != ""


def test_a_text_of_the_whole_context_ends_as_without(programs: Programs | EnginePrograms) -> None:
    async def main(ctx: Any) -> Any:
        errors = []
        for ahead in (0, 1, 3):
            text = Context(ctx, start=ctx.context_length - 4)
            text.extend([5, 6])
            try:
                if ahead:
                    await text.run_ahead(9, {"temperature": 0}, (), ahead)
                else:
                    await one_by_one(text, 9, {"temperature": 0}, ())
            except ValueError as error:
                errors.append([str(error), text.tokens])
            await text.free()
        return errors

    first, *others = programs.one(main)
    assert "at most" in first[0]
    assert others == [first, first]


def test_refused_forward_ends_the_loop_and_the_text_goes_on(
    programs: Programs | EnginePrograms,
) -> None:
    async def main(ctx: Any) -> Any:
        text = await Context(ctx).fill(PROMPT)
        start = len(text.tokens)
        try:
            await text.run_ahead(5, {"temprature": 0}, ())
        except CallError as error:
            message = str(error)
        text.forget(0)
        await text.run_ahead(5, {"temperature": 0}, ())
        return [message, text.tokens[start:]]

    message, tokens = programs.one(main)
    assert "temperature" in message
    assert tokens == programs.one(generation(1, {"temperature": 0}))[0][:5]


def test_programs_that_run_ahead_fill_passes() -> None:
    """The passes are few at least once in ten runs: on a busy machine a program may start late."""
    engine = EnginePrograms(dtype="float32", max_total_tokens=4096)

    async def main(ctx: Any) -> Any:
        text = await Context(ctx).fill(PROMPT)
        return await text.run_ahead(24, {"temperature": 0}, ())

    best = 10**6
    for _ in range(10):
        texts = engine.run(*[main] * 8)
        assert texts == [texts[0]] * 8
        best = min(best, engine.passes)
        if best <= 28:
            break
    engine.engine.shutdown()
    assert best <= 28  # 24 with full passes alone, 192 without sharing
