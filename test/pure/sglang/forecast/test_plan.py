"""Plan: what is predicted is what an engine then computes, token for token."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import sglang as sgl
from helpers.desk import Desk, generate
from helpers.http_server import Served, serve_text
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.errors import SglangError
from sglang.forecast.cache_model import Cache, Need, units
from sglang.srt.core.messages import Distribution, Fill, Generate, Goal, Score
from sglang.views.prices import checked_prices


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("model")) as server:
        yield server


# -- the cache -----------------------------------------------------------------------------------

prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=12)


@given(prompts)
def test_the_tree_against_brute_force(rows: list[list[int]]) -> None:
    cache, lengths = Cache(), {tuple[int, ...]()}
    seen: list[list[int]] = []
    for row in rows:
        most = max((prefix(row, other) for other in seen), default=0)
        assert cache.read(Need(units(row), len(row))) == most
        seen.append(row)
        lengths |= {tuple(row[:end]) for end in range(len(row) + 1)}
    assert len(cache) == len(lengths) - 1
    read = sum(len(node.edge) * node.requests for node in cache.nodes())
    assert read == sum(map(len, rows)), "an edge ends where a prompt does"


def prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def some_goal(r: random.Random, length: int, scored: bool) -> Goal:
    kind = r.random() * (1 if scored else 0.5)
    kind += 0.5 if not scored and 0.2 <= kind < 0.4 else 0.0
    if kind < 0.2:
        return Fill()
    if kind < 0.4:
        return Score(r.randrange(length))
    if kind < 0.5:
        return Distribution(top=1)
    start = r.choice([-1, -1, r.randrange(length)]) if scored else -1
    return generate(r.randint(1, 5), score_from=start, speculation="off")


def need_of(prompt: list[int], goal: Goal, drawn: list[int]) -> Need:
    """The rule in words of its own: what an output is wanted of is computed."""
    start = goal.start if isinstance(goal, Score) else getattr(goal, "score_from", -1)
    wanted = len(prompt) if isinstance(goal, Fill) else len(prompt) - 1
    if start == 0:
        start = 1  # nothing tells of the first token
    if 0 <= start < len(prompt):
        wanted = start - 1
    return Need(units(prompt), wanted, units(drawn[:-1]))


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 1 << 30), st.booleans())
def test_the_engine_computes_what_is_predicted(seed: int, together: bool) -> None:
    """Any requests one after another; at once, those that do not begin one another, and none that
    want log-probabilities: what such a one computes anew is shown to the others when it ends."""
    r = random.Random(seed)
    page_size = r.choice([1, 1, 2, 4])
    desk = Desk(4096, page_size, chunked_prefill_size=r.choice([3, 8, -1]))
    cache, asked = Cache(page_size), []
    for number in range(r.randint(1, 9)):
        prompt = [r.randrange(3) for _ in range(r.randint(1, 12))]
        if together:
            prompt += [10 + number] * page_size
        goal = some_goal(r, len(prompt), scored=not together)
        asked.append((prompt, goal, desk.ask(prompt, goal)))
        if not together:
            desk.run()
    desk.run()
    predicted = drawn = 0
    for prompt, goal, request in asked:
        tokens = desk.tokens(request) if isinstance(goal, Generate) else []
        need = need_of(prompt, goal, tokens)
        predicted += len(prompt) - cache.read(need)
        drawn += len(need.kept)
    stats = desk.engine.stats
    assert not stats.retractions
    told = stats.prompt_tokens - stats.cached_tokens
    if page_size == 1 or not together:  # pages that are begun twice at once are computed twice
        assert (stats.computed_tokens, told) == (predicted + drawn, predicted)
    desk.finish()


# -- programs ------------------------------------------------------------------------------------

WORDS = ["one ", "two", "three\n", " four", "ü", "0 1 2"]
texts = st.lists(st.sampled_from(WORDS), max_size=4).map("".join)
leaves = st.sampled_from(["gen", "several", "select", "prior"])
branches = st.lists(st.tuples(texts, leaves), min_size=1, max_size=3)
items = st.lists(st.tuples(texts, texts, branches), min_size=1, max_size=3)


@sgl.function
def sprouting(s: Any, head: str, middle: str, branches: list[Any]) -> None:
    s += "Shared: " + head + sgl.select("first", ["yes", " no", "yesterday"]) + middle
    forks = s.fork(len(branches))
    for number, (fork, (text, leaf)) in enumerate(zip(forks, branches)):
        fork += f"{text}#{number}:"
        if leaf == "select":
            fork += sgl.select("x", ["a b", "a c"])
        elif leaf == "prior":
            method = sgl.unconditional_likelihood_normalized
            fork += sgl.select("x", ["a b", "a c"], choices_method=method)
        else:
            fork += sgl.gen("x", max_tokens=3, n=2 if leaf == "several" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("as_tree", [True, False])
@settings(max_examples=6)
@given(batch=items)
def test_programs_compute_what_is_planned(served: Served, as_tree: bool, batch: list[Any]) -> None:
    backend = sgl.RuntimeEndpoint(served.url)
    backend.scores_options = as_tree
    firsts = sprouting.run_batch(batch, backend=backend, temperature=0, num_threads=1)
    answers = [{"first": state["first"]} for state in firsts]
    backend.flush_cache()
    plan = sprouting.plan(batch, backend=backend, answers=answers, temperature=0)
    before = backend.get_server_info()["stats"]
    states = sprouting.run_batch(batch, backend=backend, temperature=0, num_threads=1)
    after = backend.get_server_info()["stats"]
    compared = plan.compare(states)
    if not any(leaf == "several" for *_, branches in batch for _, leaf in branches):
        # Several completions count their prompt several times. The rows then depend on the order of
        # the calls that share it.
        assert all(row.error == 0 for row in compared.rows[:3]), compared
    count = {name: after[name] - before[name] for name in after}
    # Several completions of a prompt: the engine gets the prompt once, then once for each of them.
    if not as_tree:  # trees are no prompts
        assert plan.computed_tokens == count["prompt_tokens"] - count["cached_tokens"]
    backend.shutdown()


@sgl.function
def joined(s: Any, topic: str) -> None:
    s += "About " + topic + ":"
    forks = s.fork(3)
    for number, fork in enumerate(forks):
        fork += f" Part {number}: " + "word " * number
    forks.join("concate_and_append")
    s += " In short:" + sgl.gen("x", max_tokens=2)


@sgl.function
def talking(s: Any, topic: str) -> None:
    s += sgl.system("Be brief.")
    for number in range(3):
        s += sgl.user(f"{number}. {topic}?") + sgl.assistant(f"Yes, {topic}.")
    s += sgl.user("Why?") + sgl.assistant(sgl.gen("x", max_tokens=2))


@pytest.mark.parametrize("program", [joined, talking])
def test_joins_and_turns_compute_what_is_planned(served: Served, program: Any) -> None:
    backend = sgl.RuntimeEndpoint(served.url)
    backend.flush_cache()
    batch = [("cats",), ("dogs",), ("cats",)]
    plan = program.plan(batch, backend=backend, temperature=0)
    compared = plan.compare(program.run_batch(batch, backend=backend, num_threads=1, temperature=0))
    assert compared.error == 0, compared
    assert plan.cached_tokens > 0
    backend.shutdown()


# -- a plan --------------------------------------------------------------------------------------


@sgl.function
def quiz(s: Any, question: str) -> None:
    s += "Answer in a word. " + question
    s += sgl.gen("answer", max_tokens=4) + " Because" + sgl.gen("why", max_tokens=8, stop=".")


BATCH: list[dict[str, Any]] = [{"question": "What is red?"}, {"question": "What is wet?"}]


def test_a_plan_in_numbers() -> None:
    """A token of the mock is a word. Prompts: 7 words; then these, 4 unknown ones and one."""
    plan = quiz.plan(BATCH, backend=sgl.Mock(), temperature=0)
    assert [call.prompt_tokens for call in plan.calls] == [7, 12, 7, 12]
    assert [call.computed_tokens for call in plan.calls] == [7, 5, 1, 5]
    assert plan.completion_tokens == 24
    assert plan.hit_rate == plan.cached_tokens / 38 == 20 / 38
    assert plan.cost is None
    shared, *rest = plan.tree
    assert not rest
    assert (shared.text, shared.tokens, shared.requests) == ("Answer in a word. What is", 6, 4)
    red, wet = shared.children
    assert (red.text, red.requests, wet.requests) == (" red?", 2, 2)
    assert [child.text for child in red.children] == ["⟨answer⟩ Because"]
    assert "20  (52.6 %)" in str(plan)


def test_lengths_and_answers() -> None:
    def second(**more: Any) -> int:
        return quiz.plan(BATCH[:1], backend=sgl.Mock(), **more).calls[1].prompt_tokens

    assert second() == 12
    assert second(lengths={"answer": 2}) == 10
    assert second(answers={"answer": " a tomato"}) == 10
    assert second(answers=[{"answer": " a ripe tomato"}]) == 11
    assert second(max_tokens=2) == 12, "the program says how long its texts may be"


def test_what_is_the_same_is_drawn_once() -> None:
    """Greedy texts of equal prompts are equal, others are not."""
    twice = [BATCH[0]] * 2
    greedy = quiz.plan(twice, backend=sgl.Mock(), temperature=0)
    assert greedy.calls[3].computed_tokens == 1
    warm = quiz.plan(twice, backend=sgl.Mock(), temperature=1)
    assert warm.calls[3].computed_tokens == 5
    seeded = quiz.plan(twice, backend=sgl.Mock(), temperature=1, seed=3)
    assert seeded.calls[3].computed_tokens == 1


def test_characters_that_icon_fonts_have_are_text() -> None:
    """Such characters stand for unknown texts only after a mark."""
    batches = [{"question": f"{sign} What is red?"} for sign in "*\U000f0000\U000f0001"]
    star, *icons = [quiz.plan(one, backend=sgl.Mock()).calls for one in batches]
    assert icons == [star, star]


@pytest.mark.slow
def test_a_conversation_of_many_turns_has_a_tree() -> None:
    """A level a turn: 1 token, then 2 each. More than Python may call inside one another."""

    @sgl.function
    def long(s: Any) -> None:
        for number in range(500):
            s += f"\n{number}" + sgl.gen(max_tokens=1)

    plan = long.plan([()], backend=sgl.Mock())
    (branch,), levels = plan.tree, 1
    while branch.children:
        (branch,), levels = branch.children, levels + 1
    assert levels == 500
    assert (branch.text, branch.tokens, branch.requests) == ("⟨gen⟩\n499", 2, 1)
    assert f"     492      984{' ' * 18}in 1 more" in str(plan), "8 levels are printed"


def test_one_item_in_three_forms() -> None:
    plans = [quiz.plan(one, backend=sgl.Mock()) for one in (BATCH[0], ("What is red?",), BATCH[:1])]
    assert [plan.items for plan in plans] == [1, 1, 1]
    assert all(a.calls == b.calls for a, b in pairwise(plans))
    assert quiz.plan([], backend=sgl.Mock()).hit_rate == 0.0


def test_compiled_and_async_programs_are_planned() -> None:
    async def body(s: Any, question: str) -> None:
        quiz(s, question)

    told = quiz.plan(BATCH, backend=sgl.Mock()).calls
    for other in (quiz.compile(), sgl.function(body)):
        found = other.plan(BATCH, backend=sgl.Mock()).calls
        assert [c.computed_tokens for c in found] == [c.computed_tokens for c in told]


def test_a_backend_that_is_too_small_is_told(tmp_path: Any) -> None:
    with serve_text(tmp_path, capacity=64) as server:
        backend = sgl.RuntimeEndpoint(server.url)
        small = talking.plan([("a",)], backend=backend)
        assert small.kv_capacity == 64
        assert "has room for 64 (max_total_tokens)" in small.warning
        assert small.warning in str(small)
        backend.shutdown()


def test_prices_and_estimates() -> None:
    backend = sgl.OpenAI("no-such-model", api_key="none", base_url="http://127.0.0.1:9")

    @sgl.function
    def long(s: Any, question: str) -> None:
        s += sgl.system("x" * 8000) + sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=100))

    prices = {"input": 2.0, "output": 8.0}
    plan = long.plan(BATCH, backend=backend, prices=prices)
    turns = 2 * 4 + 2000 + 3
    assert [call.prompt_tokens for call in plan.calls] == [turns, turns]
    assert plan.cached_tokens == 0, "nothing is said of a price for what is cached"
    assert plan.cost == pytest.approx((2 * turns * 2 + 200 * 8) / 1e6)
    assert "estimated: a token every 4 bytes" in str(plan)
    cheaper = long.plan(BATCH, backend=backend, prices={**prices, "cached": 0.5})
    assert cheaper.cached_tokens == 1920, "whole steps of 128"
    assert plan.cost is not None
    assert cheaper.cost == pytest.approx(plan.cost - 1920 * 1.5 / 1e6)
    assert "a hope" in cheaper.warning


@sgl.function
def counting(s: Any) -> None:
    s += sgl.gen("number")
    for _ in range(int(s["number"])):
        s += "."


@sgl.function
def showing(s: Any) -> None:
    s += sgl.user(sgl.image(b"\x89PNG") + "What is it?") + sgl.assistant(sgl.gen("x", max_tokens=1))


def test_errors_name_the_way_out() -> None:
    mock = sgl.Mock()
    with pytest.raises(SglangError, match=r"item 0: after 1 calls .* give answers="):
        counting.plan({}, backend=mock)
    assert len(counting.plan({}, backend=mock, answers={"number": "2"}).calls) == 1
    with pytest.raises(SglangError, match="give media_tokens="):
        showing.plan({}, backend=mock)
    assert showing.plan({}, backend=mock, media_tokens=100).prompt_tokens > 100
    with pytest.raises(SglangError, match="no call asks for 'anser'"):
        quiz.plan(BATCH, backend=mock, lengths={"anser": 3})
    with pytest.raises(ValueError, match="answers for 1 items and 2 items"):
        quiz.plan(BATCH, backend=mock, answers=[{}])
    for prices, message in (
        ({"inputs": 1}, "prices has 'inputs'"),
        ({"input": 1}, "prices has no 'output'"),
        ({"input": -1, "output": 1}, "the price of input is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            quiz.plan(BATCH, backend=mock, prices=prices)
    with pytest.raises(TypeError, match="no option 'num_threads'"):
        quiz.plan(BATCH, backend=mock, num_threads=3)
    with pytest.raises(ValueError, match="for 2 items, not 1 states"):
        quiz.plan(BATCH, backend=mock).compare([quiz.run(**BATCH[0], backend=mock)])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lengths": [("a", 1)]}, r"lengths is \[\('a', 1\)\]; give a dict"),
        ({"lengths": 0}, "lengths is 0; give a dict"),
        ({"lengths": ""}, "lengths is ''; give a dict"),
        ({"lengths": []}, r"lengths is \[\]; give a dict"),
        ({"lengths": False}, "lengths is False; give a dict"),
        ({"lengths": {"a": None}}, "the length of a is None"),
        ({"lengths": {"a": -1}}, "the length of a is -1"),
        ({"lengths": {"a": "x"}}, "the length of a is 'x'"),
        ({"media_tokens": -1}, "media_tokens is -1"),
        ({"media_tokens": ""}, "media_tokens is ''"),
        ({"prices": {"input": float("inf"), "output": 1}}, "the price of input is inf"),
        ({"answers": "x"}, "give a dict of texts"),
        ({"answers": ""}, "answers is ''; give a dict of texts"),
        ({"answers": 0}, "answers is 0; give a dict of texts"),
        ({"answers": []}, "answers for 0 items and 1 items"),
        ({"answers": 5}, "answers is 5; give a dict of texts"),
        ({"answers": {"a": 5}}, "the answer for 'a' is 5"),
    ],
)
def test_what_is_no_option_is_refused(options: dict[str, Any], said: str) -> None:
    @sgl.function
    def asks(s: Any) -> None:
        s += "x" + sgl.gen("a", max_tokens=4)

    with pytest.raises((ValueError, TypeError), match=said):
        asks.plan([()], backend=sgl.Mock(), **options)


@pytest.mark.parametrize("batch", [None, 0, "", "x"])
def test_what_is_no_batch_is_refused(batch: Any) -> None:
    with pytest.raises(TypeError, match=f"batch is {batch!r}; give a list of items"):
        quiz.plan(batch, backend=sgl.Mock())


@sgl.function
def judged(s: Any, essay: str, grade: bool = True) -> None:
    s += essay + " Good?" + sgl.select("good", [" yes", " no"])
    if grade and s["good"] == " yes":
        s += " Since" + sgl.gen("why", max_tokens=4) + " Grade:" + sgl.gen("grade", max_tokens=2)


def test_what_is_not_known_is_said() -> None:
    """The warning names each unknown value, as long as the plan depends on it and it was not
    given."""

    def told(**more: Any) -> str:
        return judged.plan({"essay": "a b c"}, backend=sgl.Mock(), **more).warning

    assert "nobody knows yet (why), each" in told()
    assert "a select takes its first option (good)" in told()
    assert "nobody" not in told(lengths={"why": 2})
    assert "select" not in told(answers={"good": " yes"})
    assert told(answers={"good": " yes", "why": " it is"}) == ""
    assert told(answers={"good": " no"}) == ""
    assert told(answers={"why": " it is"}, lengths={"grade": 0}).startswith("a select")
    last = judged.plan({"essay": "a", "grade": False}, backend=sgl.Mock())
    assert last.warning == "", "nothing follows from the select"
    assert told() in str(judged.plan({"essay": "a b c"}, backend=sgl.Mock()))


@pytest.mark.parametrize("prices", [[("input", 1), ("output", 1)], "input", 0.5, 0, ""])
def test_prices_are_given_by_name(prices: Any) -> None:
    """Prices of a plan and of a trace."""
    with pytest.raises(ValueError, match=r"prices is .* give a dict of dollars"):
        quiz.plan(BATCH, backend=sgl.Mock(), prices=prices)
    with pytest.raises(ValueError, match=r"prices is .* give a dict of dollars"):
        checked_prices(prices)
