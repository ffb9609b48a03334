"""API speculation: the same text as without it, with fewer calls."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import sglang as sgl
from helpers.threads import running_threads
from hypothesis import given
from hypothesis import strategies as st
from sglang.backend.base import Backend, Completion, Prompt
from sglang.ir.params import GenParams, strings
from sglang.run.api_speculation import Leftover, leftover


class Letters(Backend):
    """A model whose next letter is a function of the text before it; a token is a letter.

    As a chat model it continues what the turns say, whether or not the assistant's has begun.
    """

    name = "letters"

    def __init__(
        self, speculates: str, alphabet: str = "ab;", seed: int = 0, most: int = 40
    ) -> None:
        self.speculates, self.alphabet, self.seed, self.most = speculates, alphabet, seed, most
        self.prompts: list[Prompt] = []

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        self.prompts.append(prompt)
        text = ""
        reason: dict[str, str | None] = {"type": "length"}
        for _ in range(min(params.max_new_tokens or 0, self.most)):
            number = zlib.crc32((prompt.text + text).encode(), self.seed)
            text += self.alphabet[number % len(self.alphabet)]
            ends = [stop for stop in strings(params.stop) if text.endswith(stop)]
            if ends:
                stop = max(ends, key=len)
                text, reason = text[: -len(stop)], {"type": "stop", "matched": stop}
                break
        else:
            if (params.max_new_tokens or 0) > self.most:
                reason = {"type": "stop", "matched": None}
        usage = {"prompt_tokens": len(prompt.text), "completion_tokens": len(text)}
        return [Completion(text, {"finish_reason": reason, **usage})]


FIELDS = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", ";", ";a", "ab"]),
        st.sampled_from([";", "a", ["b", ";"], "ab", ["abb", "b"], ["ba;", "a;"]]),
        st.sampled_from([1, 3, 8, 50]),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@pytest.mark.parametrize("speculates", ["text", "chat"])
@given(fields=FIELDS, seed=st.integers(0, 99), forks=st.booleans(), tokens=st.sampled_from([1, 30]))
def test_the_text_is_that_of_one_call_a_gen(
    speculates: str, fields: list[Any], seed: int, forks: bool, tokens: int
) -> None:
    def write(s: Any) -> None:
        turn: Any = ""
        for number, (constant, stop, limit) in enumerate(fields):
            turn = turn + constant + sgl.gen(f"x{number}", limit, stop=stop)
        if speculates == "chat":
            s += sgl.user("go") + sgl.assistant(turn)
        else:
            s += "go" + turn

    def program(s: Any) -> None:
        write(s)
        if forks:
            branches = s.fork(2)
            for branch in branches:
                write(branch)
            branches.join()

    results = []
    for spec in (None, tokens):
        backend = Letters(speculates, seed=seed)
        state = sgl.function(program, num_api_spec_tokens=spec).run(backend=backend)
        names = [f"x{number}" for number in range(len(fields))]
        results.append((state.text(), [state[name] for name in names]))
    assert results[0] == results[1]


def facts(s: Any) -> None:
    s += "Anna is a baker in Rome. Name:" + sgl.gen("name", 8, stop="\n")
    s += "\nJob:" + sgl.gen("job", 8, stop="\n") + "\nCity:" + sgl.gen("city", 8, stop="\n")


def test_one_call_answers_three_gens() -> None:
    mock = sgl.Mock([" Anna\nJob: baker\nCity: Rome\nName: Bo"], speculates="text")
    state = sgl.function(facts, num_api_spec_tokens=40).run(backend=mock)
    assert [state[name] for name in ("name", "job", "city")] == [" Anna", " baker", " Rome"]
    assert len(mock.calls) == 1
    assert state.speculation.calls == 1
    assert state.speculation.saved_calls == 2
    assert state.speculation.saved_prompt_tokens == 2 * state.usage.prompt_tokens
    assert state.get_meta_info("job")["speculated"]
    assert state.text().endswith("Name: Anna\nJob: baker\nCity: Rome")


def test_a_text_that_leaves_the_pattern_is_asked_for_anew() -> None:
    mock = sgl.Mock([" Anna\nAge: 30\nJob: x", " baker", " Rome"], speculates="text")
    state = sgl.function(facts, num_api_spec_tokens=40).run(backend=mock)
    assert [state[name] for name in ("name", "job", "city")] == [" Anna", " baker", " Rome"]
    assert state.speculation.mismatches >= 1
    assert [call.prompt.text[-5:] for call in mock.calls] == ["Name:", "\nJob:", "City:"]


def test_gens_that_draw_differently_share_no_call() -> None:
    def program(s: Any) -> None:
        s += "x" + sgl.gen("a", stop=";") + ";" + sgl.gen("b", stop=";", temperature=0.1)

    mock = sgl.Mock(["one;two;", "three"], speculates="text")
    state = sgl.function(program, num_api_spec_tokens=40).run(backend=mock)
    assert (state["a"], state["b"]) == ("one", "three")


def chat(s: Any) -> None:
    s += sgl.user("Who?")
    s += sgl.assistant(
        "Name: " + sgl.gen("name", 8, stop="\n") + "\nJob: " + sgl.gen("job", 8, stop="\n")
    )


def test_one_reply_answers_a_turn() -> None:
    mock = sgl.Mock(["Name: Anna\nJob: baker\nBye"], speculates="chat")
    state = sgl.function(chat, num_api_spec_tokens=40).run(backend=mock)
    assert (state["name"], state["job"]) == ("Anna", "baker")
    assert len(mock.calls) == 1
    assert [m["role"] for m in mock.calls[0].prompt.messages] == ["user"]
    assert state.messages()[-1]["content"] == "Name: Anna\nJob: baker"
    assert state.speculation.saved_calls == 1


def test_a_reply_that_leaves_the_pattern_keeps_what_it_followed() -> None:
    mock = sgl.Mock(["Name: Anna\nShe bakes.", "baker"], speculates="chat")
    state = sgl.function(chat, num_api_spec_tokens=40).run(backend=mock)
    assert (state["name"], state["job"]) == ("Anna", "baker")
    last = mock.calls[-1].prompt.messages[-1]
    assert last == {"role": "assistant", "content": "Name: Anna\nJob: "}
    assert state.speculation.mismatches == 1


def test_reading_inside_the_turn_asks_for_what_was_put_off() -> None:
    seen, threads = [], running_threads()

    def program(s: Any) -> None:
        s += sgl.user("Who?")
        with s.assistant():
            s += "Name: " + sgl.gen("name", 8, stop="\n")
            seen.append(s["name"])
            s += "\nJob: " + sgl.gen("job", 8, stop="\n")

    mock = sgl.Mock(["Name: Anna\n", "Name: Anna\nJob: baker"], speculates="chat")
    state = sgl.function(program, num_api_spec_tokens=40).run(backend=mock)
    assert seen == ["Anna"]
    assert state["job"] == "baker"
    assert running_threads() <= threads + 8


def test_a_gen_left_open_at_the_end_is_asked_for() -> None:
    def program(s: Any) -> None:
        s += sgl.user("Who?")
        s += sgl.assistant_begin() + "Name: " + sgl.gen("name", 8, stop="\n")

    state = sgl.function(program, num_api_spec_tokens=9).run(
        backend=sgl.Mock(["Name: Bo"], speculates="chat")
    )
    assert state["name"] == "Bo"
    assert state.text().endswith("Name: Bo")


def test_what_was_cut_by_a_limit_is_not_taken_for_an_answer() -> None:
    cut = leftover("one two", {"finish_reason": {"type": "length"}, "completion_tokens": 2}, P)
    assert cut.take(P) is None
    whole = leftover("one two", {"finish_reason": {"type": "stop"}, "completion_tokens": 2}, P)
    assert whole.take(P) == ("one two", {"type": "stop", "matched": None}, "")
    short = Leftover("a b c;", True, 0.5, 0, P)
    assert short.take(GenParams(max_new_tokens=2, stop=";")) is None  # six bytes, three tokens
    assert short.take(GenParams(max_new_tokens=3, stop=";")) is not None


P = GenParams(max_new_tokens=9, stop=";")


def test_half_a_character_of_a_service_ends_no_program() -> None:
    @sgl.function(num_api_spec_tokens=20)
    def halves(s: Any) -> None:
        s += "A: " + sgl.gen("a", max_tokens=8, stop=";") + ";" + sgl.gen("b", stop=";")

    state = halves.run(backend=sgl.Mock(["a\ud83d;b\ud83d;", ";"], speculates="text"))
    assert (state["a"], state["b"]) == ("a\ud83d", "b\ud83d")
