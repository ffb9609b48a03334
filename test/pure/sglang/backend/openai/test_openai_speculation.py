"""Three fields out of a page (paper, section 6.2), from a service that is paid by token."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import sglang as sgl
from helpers.fake_openai import FakeOpenAI

PAGES = {name: f"{name} is a {job} in {city}. " * 40 for name, job, city in [
    ("Anna", "baker", "Rome"), ("Bruno", "painter", "Oslo"), ("Clara", "sailor", "Madrid"),
]}  # fmt: skip
FIELDS = {"Name": 0, "Job": 3, "City": 5}


def extract_text(s: Any, page: str) -> None:
    s += page
    for field in FIELDS:
        s += f"\n{field}:" + sgl.gen(field, 8, stop="\n")


def extract_chat(s: Any, page: str) -> None:
    s += sgl.user(page + "Name, job and city, a line each.")
    turn: Any = ""
    for field in FIELDS:
        turn = turn + f"{field}:" + sgl.gen(field, 8, stop="\n") + "\n"
    s += sgl.assistant(turn)


def written(page: str, so_far: str) -> str:
    """The sheet of a page, from where ``so_far`` ends."""
    found = page.split()
    values = {"Name": found[0], "Job": found[3], "City": found[5].rstrip(".")}
    sheet = "".join(f"\n{field}: {value}" for field, value in values.items()) + "\n"
    done = so_far[so_far.find("\nName") :] if "\nName" in so_far else ""
    assert sheet.startswith(done)
    return sheet[len(done) :]


def as_text(body: dict[str, Any]) -> str:
    page = body["prompt"]
    return written(page, page)


def as_chat(body: dict[str, Any]) -> str:
    roles = [message["role"] for message in body["messages"]]
    so_far = body["messages"][-1]["content"] if roles[-1] == "assistant" else ""
    return written(body["messages"][0]["content"], "\n" + so_far if so_far else "").lstrip("\n")


@pytest.mark.parametrize(
    ("program", "model", "script"),
    [
        (extract_text, "gpt-3.5-turbo-instruct", as_text),
        (extract_chat, "gpt-4o", as_chat),
    ],
)
def test_three_fields_for_a_third_of_the_input(
    program: Callable[..., None], model: str, script: Any
) -> None:
    spent = []
    for tokens in (None, 40):
        with FakeOpenAI(script) as service:
            backend = sgl.OpenAI(model, base_url=service.url, api_key="k")
            run = sgl.function(program, num_api_spec_tokens=tokens)
            with ThreadPoolExecutor(3) as pool:
                one = partial(run.run, backend=backend)
                states = list(pool.map(one, PAGES.values()))
            backend.shutdown()
            spent.append((service.prompt_tokens, len(service.bodies)))
        for name, state in zip(PAGES, states):
            page = PAGES[name].split()
            assert [state[field].strip().rstrip(".") for field in FIELDS] == [
                page[0], page[3], page[5].rstrip("."),
            ]  # fmt: skip
    (plain, calls), (ahead, fewer) = spent
    assert (calls, fewer) == (9, 3)
    assert 2.8 < plain / ahead < 3.2
    assert all(state.speculation.saved_calls == 2 for state in states)
    assert sum(s.speculation.saved_prompt_tokens for s in states) == pytest.approx(
        plain - ahead, rel=0.05
    )
