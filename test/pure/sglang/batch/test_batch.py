"""run_batch: order, failure, the shared prefix, progress, and bounded use of threads."""

from __future__ import annotations

import io
import time

import pytest
import sglang as sgl
from helpers.counted import Counted, reaches
from helpers.threads import running_threads
from sglang.batch.batch_progress import BatchProgress
from sglang.compile.tracer import constant_prefix
from sglang.run.run_scope import Usage

INTRO = "Classify each review as positive or negative, and say nothing else at all. "


@sgl.function
def classify(s, review, label="Answer"):
    s += INTRO
    s += "Review: " + review + "\n"
    s += label + ": " + sgl.gen("x")
    return s["x"]


@sgl.function
def ending(s, ending):
    s += ending + sgl.gen("x")


def echo(prompt, params):
    return prompt.text.split("Review: ")[1].split("\n")[0]


@pytest.mark.slow
def test_a_thousand_items_come_back_in_order() -> None:
    mock = sgl.Mock(echo)
    before = running_threads()
    states = classify.run_batch([{"review": f"r{i}"} for i in range(1000)], backend=mock)
    assert [state["x"] for state in states] == [f"r{i}" for i in range(1000)]
    assert [call.kind for call in mock.calls] == ["commit"] + ["gen"] * 1000
    assert mock.calls[0].prompt.text == INTRO + "Review: "
    deadline = time.monotonic() + 60
    while running_threads() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running_threads() <= before


def test_tuples_bound_arguments_and_options() -> None:
    mock = sgl.Mock(echo)
    states = classify.bind(label="A").run_batch([("a",), ("b",)], backend=mock, temperature=0.25)
    assert [state["x"] for state in states] == ["a", "b"]
    assert {c.params.temperature for c in mock.calls if c.params} == {0.25}
    assert all("A: " in call.prompt.text for call in mock.calls if call.kind == "gen")
    for item, complaint in [(("a", "b", "c"), "has 3 values"), ("abc", "a dict or a tuple")]:
        with pytest.raises(TypeError, match=complaint):
            classify.run_batch([item], backend=mock)
    with pytest.raises(TypeError, match="no option 'colour'"):
        classify.run_batch([("a",)], backend=mock, colour=1)
    with pytest.raises(ValueError, match="num_threads or concurrency is 0"):
        classify.run_batch([("a",)], backend=mock, num_threads=0)
    assert classify.run_batch([], backend=mock) == []


def test_arguments_equal_in_all_items_belong_to_the_prefix() -> None:
    @sgl.function
    def program(s, examples, question):
        s += examples + "Q: " + question + sgl.gen("x")

    examples = "Q: one\nA: 1\n" * 10
    mock = sgl.Mock(lambda prompt, params: "x")
    program.run_batch([{"examples": examples, "question": q} for q in "abc"], backend=mock)
    assert mock.calls[0].kind == "commit"
    assert mock.calls[0].prompt.text == examples + "Q: "


def test_short_prefixes_and_single_items_are_not_committed() -> None:
    @sgl.function
    def short(s, q):
        s += "Q: " + q + sgl.gen("x")

    mock = sgl.Mock(lambda prompt, params: "x")
    short.run_batch([{"q": "a"}, {"q": "b"}], backend=mock)
    classify.run_batch([{"review": "a"}], backend=mock)
    assert {call.kind for call in mock.calls} == {"gen"}


def test_an_error_ends_a_generator_and_aborts_what_is_in_flight() -> None:
    backend = Counted()
    states = ending.run_batch(
        [("fine ",), ("bad ",), *[("endless ",)] * 2000],
        backend=backend, num_threads=4, generator_style=True,
    )  # fmt: skip
    assert next(states)["x"] == "a b"
    with pytest.raises(sgl.ProgramError, match=r"refused at .*test_batch.py:\d+$"):
        next(states)
    assert backend.running == 0
    assert backend.calls == 2 + backend.aborted <= 2 + 2 * 4


def test_leaving_a_generator_aborts_what_is_in_flight() -> None:
    backend = Counted()
    states = ending.run_batch(
        [("fine ",), *[("endless ",)] * 20], backend=backend, num_threads=4, generator_style=True
    )
    next(states)
    assert reaches(lambda: backend.running == 4)
    states.close()
    assert (backend.running, backend.aborted) == (0, 4)


def test_a_batch_is_not_lost_by_items_that_fail() -> None:
    @sgl.function
    def program(s, ending, fault=None):
        s += ending + sgl.gen("first")
        if fault:
            raise fault  # here
        return s["first"]

    items = [("one ",), ("bad ",), ("two ", ZeroDivisionError("mine")), ("three ",)]
    with pytest.raises(
        sgl.BatchError, match=r"^2 of 4 items failed; the first, item 1: "
    ) as caught:
        program.run_batch(items, backend=Counted())
    states, errors = caught.value.states, caught.value.errors
    assert "refused at " + __file__ in str(caught.value)
    assert [state.ret_value for state in states[::3]] == ["a b", "a b"]
    assert list(errors) == [1, 2]
    assert str(errors[2]) == "mine"
    with pytest.raises(sgl.ProgramError, match="refused"):
        states[1]["first"]
    for number in errors:
        with pytest.raises(type(errors[number]), match=str(errors[number])):
            states[number].ret_value  # noqa: B018
    with pytest.raises(sgl.BatchError, match=r"item 0: ZeroDivisionError: mine at .*batch.py:\d+$"):
        program.run_batch(items[2:3], backend=Counted())


def test_ctrl_c_ends_at_once() -> None:
    backend = Counted()

    @sgl.function
    def program(s, number):
        if number == 3:
            raise KeyboardInterrupt
        s += "endless " + sgl.gen("x")

    with pytest.raises(KeyboardInterrupt):
        list(program.run_batch([(n,) for n in (3, *range(4, 100))], backend=backend, num_threads=4))
    assert reaches(lambda: backend.running == 0)
    assert backend.calls < 10


def test_errors_can_be_collected() -> None:
    def script(prompt, params):
        review = echo(prompt, params)
        return ValueError(review) if review in ("r1", "r3") else review

    states = classify.run_batch(
        [{"review": f"r{i}"} for i in range(5)], backend=sgl.Mock(script), return_errors=True
    )
    assert [state.error() is None for state in states] == [True, False, True, False, True]
    assert states[4]["x"] == "r4"
    with pytest.raises(sgl.ProgramError, match="r3"):
        states[3]["x"]


def test_a_generator_yields_states_early_and_runs_little_ahead() -> None:
    mock = sgl.Mock(echo)
    states = classify.run_batch(
        [{"review": f"r{i}"} for i in range(500)],
        backend=mock, num_threads=4, generator_style=True,
    )  # fmt: skip
    assert [next(states)["x"] for _ in range(10)] == [f"r{i}" for i in range(10)]
    time.sleep(0.1)
    assert len(mock.calls) <= 1 + 10 + 2 * 4
    states.close()


@pytest.mark.parametrize("use_tqdm", [True, False])
def test_progress_tells_items_rate_and_cache(use_tqdm: bool) -> None:
    if use_tqdm:
        pytest.importorskip("tqdm")
    out = io.StringIO()
    progress = BatchProgress(3, out, use_tqdm)
    for number in range(3):
        usage = Usage()
        usage.add({"prompt_tokens": 8, "cached_tokens": 6, "completion_tokens": 5})
        progress.advance(usage, failed=number == 1)
    progress.close()
    assert "3/3" in out.getvalue()
    assert "tokens/s, 75% cached, 1 failed" in out.getvalue()


@pytest.mark.parametrize("use_tqdm", [True, False])
def test_progress_begins_at_what_is_restored(use_tqdm: bool) -> None:
    out = io.StringIO()
    progress = BatchProgress(10, out, use_tqdm, restored=4)
    progress.close()
    assert "4/10" in out.getvalue()


def test_a_progress_bar_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    classify.run_batch([("a",), ("b",)], backend=sgl.Mock(echo), progress_bar=True)
    assert "2/2" in capsys.readouterr().err


def prefix_of(function, **arguments) -> str:
    return constant_prefix(sgl.function(function), sgl.Mock(), arguments)


def test_where_the_constant_prefix_ends() -> None:
    def plain(s, q):
        s += "Begin. " + sgl.user("Hi " + q) + "never"

    def formatted(s, q):
        s += "Begin. "
        s += f"Q: {q}"

    def branching(s, q):
        s += "Begin. "
        if q:
            s += "never"

    def generating(s):
        s += "Begin. " + sgl.gen("x") + "never"

    def selecting(s):
        s += "Begin. " + sgl.select("x", ["a"]) + "never"

    def forking(s):
        s += "Begin. "
        s.fork(2)
        s += "never"

    def stubborn(s, q):
        while True:
            try:
                s += "Begin. " + q
            except Exception:
                continue

    def looping(s, items):
        s += "Begin. "
        for item in items:
            s += item

    def method(s, q):
        s += "Begin. " + q.upper()

    def failing(s):
        s += "Begin. "
        raise OSError

    assert prefix_of(plain) == "Begin. <|im_start|>user\nHi "
    assert prefix_of(plain, q="Al") == "Begin. <|im_start|>user\nHi Al<|im_end|>\nnever"
    for function in (
        formatted,
        branching,
        generating,
        selecting,
        forking,
        stubborn,
        looping,
        failing,
    ):
        assert prefix_of(function) == "Begin. "
    assert prefix_of(method) == ""


def test_cache_commits_the_prefix() -> None:
    mock = sgl.Mock()
    assert classify.cache(mock) == INTRO + "Review: "
    assert [call.kind for call in mock.calls] == ["commit"]


def test_an_item_that_lives_with_a_failure_has_not_failed() -> None:
    @sgl.function
    def program(s, x):
        s += x + sgl.gen("y")
        try:
            return s["y"]
        except sgl.ProgramError:
            return "fallback"

    def script(prompt, params):
        return ValueError("no") if prompt.text == "b" else "fine"

    states = program.run_batch([{"x": x} for x in "abc"], backend=sgl.Mock(script))
    assert [state.ret_value for state in states] == ["fine", "fallback", "fine"]
