"""Upstream's quick start and usage examples, rewritten: on the embedded model, in process and over
HTTP. The parameters and the way of reading are those of the examples."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl

pytest.importorskip("torch")
SETTINGS = {"max_total_tokens": 32768, "log_level": "warning", "device": "cpu", "threads": 1}


@pytest.fixture(scope="module", params=["Engine", "Runtime"])
def backend(request: pytest.FixtureRequest) -> Iterator[sgl.Engine | sgl.Runtime]:
    with getattr(sgl, request.param)(**SETTINGS) as made:
        sgl.set_default_backend(made)
        yield made
    sgl.set_default_backend(None)


pytestmark = pytest.mark.usefixtures("backend")


@sgl.function
def few_shot(s, question):
    s += "Q: What is the capital of Spain?\nA: Madrid\n\n"
    s += "Q: What is the capital of Italy?\nA: Rome\n\n"
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", temperature=0)


def test_complete_once_streamed_and_in_a_batch() -> None:
    question = "What is the capital of France?"
    state = few_shot.run(question=question)
    answer = state["answer"].strip().lower()
    assert "paris" in answer
    streamed = few_shot.run(question=question, stream=True)
    assert "".join(streamed.text_iter()) == state.text()
    states = few_shot.run_batch(
        [{"question": question}, {"question": "What is the capital of Peru?"}], progress_bar=True
    )
    assert states[0]["answer"] == state["answer"]
    assert all(isinstance(s["answer"], str) for s in states)


@sgl.function
def two_turns(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=32))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=32))


ASKED: dict[str, Any] = {
    "question_1": "What is the capital of France?",
    "question_2": "What can you do?",
}


def test_chat_once_streamed_and_in_a_batch() -> None:
    state = two_turns.run(**ASKED, temperature=0)
    roles = [message["role"] for message in state.messages()]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert state.messages()[2]["content"] == state["answer_1"]
    streamed = two_turns.run(**ASKED, temperature=0, stream=True)
    assert "".join(streamed.text_iter()) == state.text()
    for one in two_turns.run_batch([ASKED, ASKED], temperature=0):
        assert one.messages() == state.messages()


def test_streaming_one_variable() -> None:
    state = two_turns.run(**ASKED, temperature=0)
    streamed = two_turns.run(**ASKED, temperature=0, stream=True)
    assert "".join(streamed.text_iter(var_name="answer_2")) == state["answer_2"]

    async def pieces() -> list[str]:
        streamed = two_turns.run(**ASKED, temperature=0, stream=True)
        return [piece async for piece in streamed.text_async_iter(var_name="answer_2")]

    assert "".join(asyncio.run(pieces())) == state["answer_2"]


@sgl.function
def tool(s, question):
    s += "To answer this question: " + question + ", "
    s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"])


def test_log_probabilities_of_choices() -> None:
    states = [tool.run("What is 5 + 5?"), *tool.run_batch([{"question": "What is 5 + 6?"}])]
    for state in states:
        meta_info = state.get_meta_info("tool")
        assert state["tool"] in ("calculator", "search engine")
        for row in meta_info["input_token_logprobs"]:
            assert all(len(entry) == 3 for entry in row)


@sgl.function
def samples(s, question, n):
    s += "Question: Compute 1 + 2\nTool: calculator\nAnswer: 3\n"
    s += "Question: " + question + "\n"
    forks = s.fork(n)
    forks += "Tool:" + sgl.gen("tool", choices=["calculator", "browser"]) + "\n"
    forks += "Answer:" + sgl.gen("answer", stop="\n", max_tokens=16) + "\n"
    forks.join()


def test_parallel_samples_whose_number_is_called_n() -> None:
    state = samples.run(question="Compute 5 + 2 + 4", n=3, temperature=1.0)
    assert len(state["tool"]) == len(state["answer"]) == 3


@sgl.function
def several(s):
    s += sgl.user("What is the capital of France?")
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=16, n=2))
    s += sgl.user("What is the capital of Italy?")
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=16))


def test_several_texts_of_one_gen() -> None:
    for state in (several.run(), *several.run_batch([{}, {}])):
        assert len(state["answer_1"]) == 2
        assert isinstance(state["answer_2"], str)


@sgl.function
def tips(s):
    s += "Here are two tips for staying healthy: 1. Eat fruit. 2. Sleep well.\n\n"
    forks = s.fork(2)
    for number, fork in enumerate(forks):
        fork += f"Now, expand tip {number + 1} into a paragraph:\n"
        fork += sgl.gen("detailed", max_tokens=24, stop="\n\n")
    s += "Tip 1:" + forks[0]["detailed"] + "\nTip 2:" + forks[1]["detailed"] + "\n"
    s += "In summary" + sgl.gen("summary", max_tokens=24)


def test_forks_and_a_summary() -> None:
    state = tips.run()
    assert state.text().endswith("In summary" + state["summary"])


ADDRESS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"
SHEET = (
    r"""\{\n"""
    r"""    "name": "[\w\d\s]{1,16}",\n"""
    r"""    "house": "(red|blue|green)",\n"""
    r"""    "wand": \{\n"""
    r"""        "length": [0-9]{1,2}\.[0-9]{0,2}\n"""
    r"""    \},\n"""
    r"""    "姓名": "[^"]{1,8}"\n"""
    r"""\}"""
)


@pytest.mark.parametrize("pattern", [ADDRESS, SHEET])
def test_regular_expressions(pattern: str) -> None:
    @sgl.function
    def program(s):
        s += "Fill it in.\n" + sgl.gen("answer", max_tokens=256, temperature=0, regex=pattern)

    assert re.fullmatch(pattern, program.run()["answer"])


def test_the_least_number_of_tokens() -> None:
    @sgl.function
    def program(s):
        s += sgl.user("What is the capital of France?")
        s += sgl.assistant(sgl.gen("answer", min_tokens=24, max_tokens=32))

    meta_info = program.run(temperature=0).get_meta_info("answer")
    assert 24 <= meta_info["completion_tokens"] <= 32


@sgl.function
def paths(s, question, top_k):
    """Chain-of-thought decoding: a path for each of the likeliest first tokens."""
    s += sgl.user("Question: " + question + "\nAnswer:")
    s += sgl.assistant_begin()
    first = s.fork(1)[0]
    forks = s.fork(top_k)
    asked: dict[str, Any] = {"return_logprob": True, "return_text_in_logprobs": True}
    first += sgl.gen("first", max_tokens=0, top_logprobs_num=top_k, **asked)
    s["found"] = []
    for fork, (logprob, _, text) in zip(
        forks, first.get_meta_info("first")["output_top_logprobs"][0]
    ):
        fork += text
        fork += sgl.gen("answer", temperature=0, max_tokens=8, top_logprobs_num=2, **asked)
        tops = fork.get_meta_info("answer")["output_top_logprobs"]
        gaps = [math.exp(one[0]) - math.exp(two[0]) for (one, two) in tops]
        s["found"].append((text, logprob, sum(gaps)))
    return first.text(), first["first"]


def test_paths_from_the_likeliest_first_tokens() -> None:
    state = paths.run(question="What is 2 + 3?", top_k=4)
    found = state["found"]
    assert len({text for text, _, _ in found}) == 4
    assert [logprob for _, logprob, _ in found] == sorted((p for _, p, _ in found), reverse=True)
    prompt, text = state.ret_value
    assert text == ""
    assert prompt.endswith("assistant\n")  # the token that was looked at is not in the text


def test_a_gen_of_no_tokens_writes_nothing_when_streamed() -> None:
    @sgl.function
    def program(s):
        s += "A" + sgl.gen("x", max_tokens=0, return_logprob=True) + "B"

    assert "".join(program.run(stream=True).text_iter()) == "AB"
    state = program.run()
    assert state.get_meta_info("x")["finish_reason"] == {"type": "length", "length": 0}
    assert len(state.get_meta_info("x")["output_token_logprobs"]) == 1
