"""Explain: what would be sent is what is sent, and nothing is sent."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress

import pytest
import sglang as sgl
from helpers.programs import VALUES, program_of, programs
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.backend.base import Choose, Commit, Complete
from sglang.compiler import compile
from sglang.errors import SglangError


class Sent(sgl.Mock):
    """Keeps the body of each request."""

    def __init__(self, script=None, **options) -> None:
        super().__init__(script, **options)
        self.bodies: list[dict] = []

    def complete(self, prompt, params):
        self.bodies.append(self.request(Complete(prompt, params)))
        return super().complete(prompt, params)

    def choose(self, prompt, options, method):
        self.bodies.append(self.request(Choose(prompt, options, method)))
        return super().choose(prompt, options, method)

    def commit(self, prompt):
        self.bodies.append(self.request(Commit(prompt)))
        return super().commit(prompt)


def named(operations: list) -> list:
    """The operations with a name for each gen, and the body of another program in its place."""
    changed = []
    for kind, *rest in operations:
        if kind == "gen":
            rest[0] = rest[0] or "x"
        if kind == "call":
            kind, rest = "inline", rest[:1]
        branches = kind == "fork"
        rest = [
            [named(body) for body in part] if branches and number == 0
            else named(part) if kind in CONTAINERS and isinstance(part, list) else part
            for number, part in enumerate(rest)
        ]  # fmt: skip
        changed.append((kind, *rest))
    return changed


CONTAINERS = ("scope", "fork", "copy", "inline", "role")


def asked_names(operations: list) -> set[str]:
    """Names of the gens; a fork that is joined side by side has nothing after the join."""
    found: set[str] = set()
    for kind, *rest in operations:
        if kind == "gen":
            found.add(rest[0])
        elif kind == "fork":
            after = [] if rest[1] == "concate_and_append" else rest[2]
            found = found.union(asked_names(after), *map(asked_names, rest[0]))
        elif kind in CONTAINERS:
            found |= asked_names(rest[-1])
    return found


def always_yes(prompt, params):
    return "yes"


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(programs().map(named), st.sampled_from(["chatml", "llama-2-chat"]))
def test_what_is_explained_is_what_is_sent(operations: list, template: str) -> None:
    program, backend = program_of(operations), Sent(always_yes, chat_template=template)
    program.run(**VALUES, backend=backend, use_thread=False)
    silent = Sent(chat_template=template)
    answers = dict.fromkeys(asked_names(operations), "yes")
    explained = program.explain(**VALUES, backend=silent, answers=answers)
    assert [request.body for request in explained.requests] == backend.bodies
    assert silent.calls == []
    compiled = compile(program).explain(**VALUES, backend=silent, answers=answers)
    assert key(request.body for request in compiled.requests) == key(backend.bodies)
    assert silent.calls == []


def key(bodies) -> Counter:
    return Counter(json.dumps(body) for body in bodies)


@pytest.mark.parametrize("answers", [["a", "b"], ["a. And", "b"], ["a", "b and much more"]])
@pytest.mark.parametrize("speculates", ["chat", "text", ""])
def test_speculation_is_explained_as_it_happens(speculates: str, answers: list) -> None:
    def turn(s):
        s += sgl.user("Q") + sgl.assistant_begin()
        s += "A: " + sgl.gen("x", stop=".") + ". B: " + sgl.gen("y") + sgl.select("z", ["1", "2"])

    def script(prompt, params):
        if not params.max_new_tokens:
            return "2"
        asked = prompt.text.rpartition("assistant\n")[2]
        if not asked:
            return f"A: {answers[0]}. B: {answers[1]}"
        return answers[1] if "B:" in asked else answers[0] + "."

    program = sgl.function(turn, num_api_spec_tokens=64)
    backend = Sent(script, speculates=speculates)
    program.run(backend=backend, use_thread=False)
    given_ = {"x": answers[0], "y": answers[1], "z": "2"}
    explained = program.explain(backend=Sent(speculates=speculates), answers=given_)
    assert [request.body for request in explained.requests] == backend.bodies
    titles = [request.title for request in explained.requests]
    if answers == ["a", "b"]:
        gens = ["gen x, y"] if speculates == "chat" else ["gen x", "gen y"]
        assert titles == [*gens, "select z"]


@pytest.mark.parametrize(
    ("speculates", "top_p", "opening"), [("chat", 0.5, "gen x, y"), ("text", None, "gen x")]
)
def test_a_gen_that_speculation_does_not_answer_has_its_own_call(
    speculates: str, top_p: float | None, opening: str
) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.user("Q")
        s += sgl.assistant(sgl.gen("x", stop="\n") + "\n" + sgl.gen("y", stop="\n", top_p=top_p))
        s += sgl.user(s["y"]) + sgl.assistant(sgl.gen("z"))

    answers = {"y": ["first", "second"]}
    explained = program.explain(backend=sgl.Mock(speculates=speculates), answers=answers)
    assert [request.title for request in explained.requests] == [opening, "gen y", "gen z"]
    assert "user\nfirst<" in explained.requests[2].body["text"]


@sgl.function
def picky(s, question):
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("tool", choices=["search", "none"]))
    if s["tool"] == "search":
        forks = s.fork(2)
        forks += sgl.user("look") + sgl.assistant(sgl.gen("found", stop="\n", n=2))
        forks.join()
        s += sgl.user(" and ".join(s["found"][1]))
    s += sgl.assistant(sgl.gen("answer", regex="[0-9]+"))


def test_it_is_readable_and_follows_branches() -> None:
    explained = picky.explain("Why?", backend=sgl.Mock(), temperature=0.5)
    assert [request.title for request in explained.requests] == [
        "select tool", "gen found", "gen found", "gen answer"
    ]  # fmt: skip
    text = str(explained)
    assert text.startswith("1. select tool, ")
    assert "test_explain.py:" in text.splitlines()[0]
    assert '     "⟨found⟩ and ⟨found 2⟩<|im_end|>\\n"\n' in text
    assert '"temperature": 0.5' in text
    other = picky.explain("Why?", backend=sgl.Mock(), answers={"tool": "none"})
    assert [request.title for request in other.requests] == ["select tool", "gen answer"]
    assert repr(other) == str(other)


def test_media_are_whole_in_the_data_and_short_in_print() -> None:
    @sgl.function
    def look(s):
        s += sgl.image(b"\x89PNG\r\n\x1a\n" + bytes(1000)) + sgl.gen("x")

    class Native(sgl.Mock):
        def request(self, call):
            return {"image_data": [medium.address for medium in call.prompt.media]}

    explained = look.explain(backend=Native())
    assert explained.requests[0].body["image_data"][0].endswith("AAAA")
    assert "(1366 characters)" in str(explained)
    assert len(str(explained)) < 400


def test_answers_are_used_in_turn_and_the_last_one_again() -> None:
    @sgl.function
    def program(s):
        for _ in range(3):
            s += sgl.gen("x")
        return s.text()

    explained = program.explain(backend=sgl.Mock(), answers={"x": ["a", "b"]})
    assert [request.body["text"] for request in explained.requests] == ["", "a", "ab"]
    assert str(explained).count("\n") == 8


@pytest.mark.parametrize("loop", [False, True])
def test_an_async_program_is_explained_wherever_one_is(loop: bool) -> None:
    @sgl.function
    async def program(s):
        s += "A" + sgl.gen("x")
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sgl.gen("y")
        await forks.ajoin()
        s += (await s.aget("y"))[1] + sgl.gen("z")

    async def inside():
        return program.explain(backend=sgl.Mock())

    explained = asyncio.run(inside()) if loop else program.explain(backend=sgl.Mock())
    texts = [request.body["text"] for request in explained.requests]
    assert texts == ["A", "A⟨x⟩0", "A⟨x⟩1", "A⟨x⟩⟨y⟩"]


def test_a_program_that_goes_on_for_ever_is_stopped() -> None:
    @sgl.function
    def program(s):
        while True:
            with suppress(Exception):
                s += sgl.gen("x")

    with pytest.raises(SglangError, match=r"1000 calls and goes on, at .*test_explain.py:\d+"):
        program.explain(backend=sgl.Mock())


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({}, r"after 2 calls the program raised ValueError: .*'⟨n⟩'; .* give answers="),
        ({"pick": "b"}, r"the answer for 'pick' is 'b', none of \['a'\]"),
        ({"n": "5", "m": "6"}, "no call asks for 'm'"),
    ],
)
def test_answers_that_do_not_fit_are_refused(answers: dict, message: str) -> None:
    @sgl.function
    def program(s):
        s += sgl.select("pick", ["a"]) + sgl.gen("n", dtype=int)
        return int(s["n"]) + s.value("n")

    with pytest.raises(SglangError, match=message):
        program.explain(backend=sgl.Mock(), answers=answers)
    with pytest.raises(TypeError, match="the answer for 'n' is"):
        program.explain(backend=sgl.Mock(), answers={"n": [5]})  # type: ignore[list-item]
    assert len(program.explain(backend=sgl.Mock(), answers={"n": "5"}).requests) == 2


def test_programs_that_it_runs_are_explained_too() -> None:
    @sgl.function
    def inner(s, text):
        s += text + sgl.gen("x")
        return s["x"]

    @sgl.function
    def outer(s):
        s += inner.run("in ", temperature=0, backend=real).ret_value + sgl.gen("y")
        states = inner.run_batch([("a ",), ("b ",)], backend=real)
        s += states[1]["x"] + sgl.gen("z")

    real = sgl.Mock()
    explained = outer.explain(backend=sgl.Mock())
    texts = [request.body["text"] for request in explained.requests]
    assert texts == ["in ", "⟨x⟩", "a ", "b ", "⟨x⟩⟨y⟩⟨x⟩"]
    assert real.calls == []


def test_what_a_compiled_program_calls_is_refused_and_not_sent() -> None:
    @sgl.function
    def inner(s):
        s += sgl.gen("x")

    @sgl.function
    def outer(s):
        s += inner.run()["x"]

    real = sgl.Mock()
    with pytest.raises(SglangError, match="a compiled one calls is not explained"):
        compile(outer).explain(backend=real)
    assert real.calls == []


def test_reasoning_is_explained() -> None:
    @sgl.function
    def program(s):
        s += "Q" + sgl.separate_reasoning(sgl.gen("x"), "deepseek-r1") + sgl.gen("y")
        return s["x"], s["x_reasoning_content"]

    explained = program.explain(backend=sgl.Mock())
    assert explained.requests[1].body["text"] == "Q⟨x⟩"
    assert json.dumps(explained.requests[0].body)
