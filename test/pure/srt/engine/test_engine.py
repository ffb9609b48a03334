"""The engine over a fake worker: contexts, goals and stops."""

from __future__ import annotations

import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import EOS, TOKEN_BYTES, VOCAB, logprob, next_token
from helpers.simulation import expected
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Append,
    Close,
    Distribution,
    Fill,
    ForkContext,
    Score,
    Truncate,
)
from sglang.srt.engine.loop import affordable

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def alone(prompt: list[int], goal: object) -> list[int]:
    return expected(prompt, goal.sampling).tokens  # type: ignore[attr-defined]


# -- contexts ------------------------------------------------------------------------------------


def test_a_generation_and_its_events() -> None:
    desk = Desk()
    context = desk.open(PROMPT)
    request = desk.advance(context)
    desk.run()
    assert desk.tokens(request) == alone(PROMPT, generate())
    done = desk.done(request)
    stats = done.stats
    assert (done.reason, stats.prompt_tokens, stats.cached_tokens) == ("length", 8, 0)
    assert stats.completion_tokens == 8
    assert done.stats.forward_passes == 8, "the prompt and the first token are one pass"
    assert list(desk.engine.store.contexts[context].tokens) == PROMPT + desk.tokens(request)
    desk.finish()


@pytest.mark.parametrize(("interval", "told"), [(1, [1] * 8), (3, [1, 3, 3, 1]), (32, [1, 7])])
def test_tokens_are_told_of_at_intervals(interval: int, told: list[int]) -> None:
    """The first at once, which its time is measured by; the last with the end."""
    desk = Desk()
    request = desk.ask(PROMPT, generate(top=2, probe=(3,), interval=interval))
    desk.run()
    assert [len(event.tokens) for event in desk.news(request)] == told
    assert desk.tokens(request) == alone(PROMPT, generate())
    for event in desk.news(request):
        assert len(event.logprobs) == len(event.tops) == len(event.probes) == len(event.tokens)
    desk.finish()


def test_a_generation_goes_on_behind_a_tools_result() -> None:
    """Random numbers and penalties count on: two requests generate what one does."""
    free = {"temperature": 1.0, "seed": 7, "frequency_penalty": 0.5}
    whole = Desk()
    request = whole.ask(PROMPT, generate(12, **free))
    whole.run()
    desk = Desk()
    context = desk.open(PROMPT)
    first = desk.advance(context, generate(5, **free))
    desk.run()
    more = desk.advance(context, generate(7, since=len(PROMPT), **free))
    desk.run()
    assert desk.tokens(first) + desk.tokens(more) == whole.tokens(request)
    assert desk.done(more).stats.prompt_tokens == len(PROMPT) + 5
    desk.send(Append(context, ints([9, 9]).tobytes()))
    last = desk.advance(context, generate(3, since=len(PROMPT), **free))
    desk.run()
    known = PROMPT + whole.tokens(request) + [9, 9]
    assert desk.tokens(last) == expected(
        known, generate(3, **free).sampling, since=len(PROMPT)
    ).tokens  # fmt: skip
    desk.send(Close(context))
    desk.finish()
    whole.finish()


def test_what_resumes_keeps_its_place_in_the_queue() -> None:
    desk = Desk(max_running_requests=1, schedule_policy="fcfs")
    desk.clock.advance(10.0)
    first, late = desk.ask([1] * 4, generate(2)), desk.ask([2] * 4, generate(2))
    back = desk.ask([3] * 4, generate(2), arrived=5.0)
    early = desk.ask([4] * 4, generate(2), arrived=20.0)  # counts from now
    desk.run()
    assert list(desk.events) == [back, first, late, early], "not served in order of age"
    desk.finish()


def test_an_abort_tells_of_what_was_drawn() -> None:
    desk = Desk()
    context = desk.open(PROMPT)
    request = desk.advance(context, generate(20, interval=32))
    for _ in range(6):
        desk.step()
    assert len(desk.tokens(request)) == 1
    desk.send(Close(context))
    assert desk.tokens(request) == alone(PROMPT, generate(6))
    assert desk.done(request).stats.completion_tokens == 6
    desk.finish()


def test_a_context_goes_on_where_it_was() -> None:
    desk = Desk()
    context = desk.open(PROMPT)
    first = desk.advance(context, generate(4))
    desk.run()
    desk.send(Append(context, ints([7, 7]).tobytes()))
    second = desk.advance(context, generate(4))
    desk.run()
    so_far = [*PROMPT, *desk.tokens(first), 7, 7]
    assert desk.tokens(second) == alone(so_far, generate(4))
    assert desk.done(second).stats.cached_tokens == len(so_far) - 3, (
        "all but the last drawn and the appended"
    )
    desk.finish()


def test_truncate_then_another_way() -> None:
    desk = Desk()
    context = desk.open(PROMPT)
    desk.advance(context, generate(6))
    desk.run()
    desk.send(Truncate(context, 5))
    request = desk.advance(context, generate(6))
    desk.run()
    assert desk.tokens(request) == alone(PROMPT[:5], generate(6))
    assert desk.done(request).stats.cached_tokens == 4
    desk.finish()


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_fork_meets_its_parents_kv(page_size: int) -> None:
    desk = Desk(page_size=page_size)
    context = desk.open(PROMPT * 2)
    desk.advance(context, Fill())
    desk.run()
    desk.send(ForkContext(context, 100), ForkContext(context, 101, 9))
    desk.send(Append(100, ints([50]).tobytes()), Append(101, ints([51]).tobytes()))
    one, two = desk.advance(100), desk.advance(101)
    desk.run()
    assert desk.tokens(one) == alone([*PROMPT * 2, 50], generate())
    assert desk.tokens(two) == alone([*(PROMPT * 2)[:9], 51], generate())
    assert desk.done(one).stats.cached_tokens == 16
    assert desk.done(two).stats.cached_tokens == 9 // page_size * page_size
    desk.finish()


def test_a_fork_of_a_running_context() -> None:
    desk = Desk()
    context = desk.open(PROMPT)
    request = desk.advance(context, generate(10))
    for _ in range(4):
        desk.step()
    desk.send(ForkContext(context, 100))
    so_far = PROMPT + desk.tokens(request)
    other = desk.advance(100, generate(3, seed=1, temperature=1.0))
    desk.run()
    assert desk.tokens(request) == alone(PROMPT, generate(10))
    assert desk.tokens(other) == alone(so_far, generate(3, seed=1, temperature=1.0))
    assert desk.done(other).stats.cached_tokens == len(so_far) - 1
    desk.finish()


def test_namespaces_share_nothing() -> None:
    desk = Desk()
    for space, cached in (("a", 0), ("b", 0), ("a", len(PROMPT) - 1)):
        request = desk.advance(desk.open(PROMPT, space), generate(1))
        desk.run()
        assert desk.done(request).stats.cached_tokens == cached
    desk.finish()


# -- goals ---------------------------------------------------------------------------------------


def test_fill_then_everything_is_cached() -> None:
    desk = Desk()
    first = desk.ask(PROMPT, Fill())
    desk.run()
    assert (desk.done(first).reason, desk.done(first).stats.cached_tokens) == ("done", 0)
    before = desk.worker.passes
    second = desk.ask(PROMPT, Fill())
    desk.run()
    assert desk.worker.passes == before, "no pass is needed"
    assert (desk.done(second).stats.cached_tokens, desk.done(second).stats.forward_passes) == (
        len(PROMPT),
        0,
    )
    desk.finish()


def test_two_equal_fills_at_once_compute_once() -> None:
    desk = Desk()
    one, two = desk.ask(PROMPT, Fill()), desk.ask(PROMPT, Fill())
    desk.run()
    assert desk.worker.tokens == len(PROMPT)
    assert desk.done(one).reason == desk.done(two).reason == "done"
    desk.finish()


@pytest.mark.parametrize("chunk", [1, 3, -1])
@pytest.mark.parametrize("start", [0, 1, 3, 7, 8])
def test_scores_are_computed_where_the_cache_has_the_kv(start: int, chunk: int) -> None:
    desk = Desk(chunked_prefill_size=chunk)
    desk.ask(PROMPT, Fill())
    desk.run()
    request = desk.ask(PROMPT, Score(start, top=1, probe=(5, 6)))
    desk.run()
    want = [logprob(PROMPT[:i], PROMPT[i]) if i else None for i in range(start, len(PROMPT))]
    prompt = desk.prompt(request)
    assert (prompt.start, prompt.logprobs) == (start, want)
    assert len(prompt.tops) == len(prompt.probes) == len(want)
    assert desk.done(request).stats.cached_tokens == max(min(start, 8) - 1, 0), (
        "the hit ends before the first"
    )
    desk.finish()


def test_a_prompt_of_one_token_has_one_unknown_score() -> None:
    desk = Desk()
    request = desk.ask([5], generate(2, score_from=0))
    desk.run()
    assert desk.prompt(request).logprobs == [None]
    desk.finish()


def test_generation_with_log_probabilities() -> None:
    desk = Desk()
    request = desk.ask(PROMPT, generate(3, top=1, score_from=4))
    plain = desk.ask(PROMPT, generate(3))
    desk.run()
    kinds = [type(event).__name__ for event in desk.events[request]]
    assert kinds == ["PromptChunk", "Tokens", "Tokens", "Tokens", "Done"]
    assert [len(event.logprobs) for event in desk.news(request)] == [1, 1, 1]
    assert all(not event.logprobs for event in desk.news(plain))
    assert desk.prompt(request).logprobs == [logprob(PROMPT[:i], PROMPT[i]) for i in range(4, 8)]
    desk.finish()


def test_a_distribution_draws_nothing() -> None:
    desk = Desk()
    context = desk.open(PROMPT)
    request = desk.advance(context, Distribution(top=1))
    desk.run()
    assert desk.done(request).top == [(next_token(PROMPT), -0.5)]
    assert not desk.tokens(request)
    assert len(desk.engine.store.contexts[context].tokens) == len(PROMPT)
    desk.finish()


# -- stops ---------------------------------------------------------------------------------------

LONG = alone(PROMPT, generate(40))
TEXT = b"".join(TOKEN_BYTES[token] for token in LONG)


def test_a_stop_token() -> None:
    desk = Desk()
    request = desk.ask(PROMPT, generate(40, stop_token_ids=(LONG[5],)))
    desk.run()
    at = LONG.index(LONG[5])
    done = desk.done(request)
    assert (done.reason, done.matched, done.cut) == ("stop", LONG[5], at)
    assert desk.tokens(request) == LONG[: at + 1]
    desk.finish()


def test_an_end_token_ends_unless_ignored_or_too_early() -> None:
    prompt = next(p for n in range(5000) if next_token(p := [n % VOCAB, n // VOCAB]) == EOS)
    desk = Desk()
    ends = desk.ask(prompt, generate(4, ignore_eos=False))
    ignores = desk.ask(prompt, generate(4))
    later = desk.ask(prompt, generate(4, ignore_eos=False, min_new_tokens=4))
    desk.run()
    assert (desk.tokens(ends), desk.done(ends).matched) == ([EOS], EOS)
    assert desk.done(ends).cut == 0
    assert desk.tokens(ignores)[0] == EOS
    assert desk.done(ignores).reason == "length"
    assert EOS not in desk.tokens(later)
    assert len(desk.tokens(later)) == 4
    desk.finish()


@pytest.mark.parametrize("kind", ["stop", "stop_regex"])
def test_stop_texts_across_tokens(kind: str) -> None:
    import re

    word = TEXT[10:13].decode()
    desk = Desk()
    pattern = word if kind == "stop" else re.escape(word)
    request = desk.ask(PROMPT, generate(40, **{kind: (pattern,)}))
    desk.run()
    done = desk.done(request)
    at = TEXT.index(word.encode())
    assert (done.reason, done.matched, done.cut) == ("stop", word, at)
    assert desk.tokens(request) == LONG[: at + 3]
    held = [event.held for event in desk.news(request)]
    assert all(event <= n + 1 for n, event in enumerate(held))
    assert held[at + 1] >= 2, "the beginning of a stop is held back"
    desk.finish()


def test_few_texts_that_go_on_are_searched_in_a_step() -> None:
    """The stops of a text that a lost engine wrote are searched for in all of it at once."""

    def fit(generated: int = 2000, **stops: object) -> int:
        goal = generate(3000, since=1, generated=generated, **stops)
        return affordable([Advance(i, i, goal) for i in range(200)], {})

    assert fit(stop_regex=("x{3}",)) <= 4
    assert fit(stop=("xxx",)) <= 8
    assert fit(2, stop_regex=("x{3}",)) == 200, "short ones"
    assert fit() == 200
