"""Bills of API speculation, by a service that counts: calls, payments and texts."""

from __future__ import annotations

from typing import Any

from helpers.fake_openai import Body, FakeOpenAI, prompt_of, words

from benchmark.api_speculation.bill import bill
from benchmark.api_speculation.claim import ASK, CLAIM, FIELDS, program, speculating
from benchmark.harness.claim import Item, Scale

ITEMS = CLAIM.items(Scale(5), 0)


def sheet(item: Item) -> str:
    return "".join(f"\n{field}: {item['fields'][field]}" for field in FIELDS)[1:]


def service(after: str = "", items: list[Item] = ITEMS) -> FakeOpenAI:
    """Goes on in the assistant's turn as a model would that knows the form; ``after`` the name it
    goes on with that instead."""

    def reply(body: Body) -> str:
        asked: list[dict[str, Any]] = body["messages"]
        begun = asked[-1]["content"] if asked[-1]["role"] == "assistant" else ""
        (item,) = (item for item in items if item["page"] in prompt_of(body))
        whole = sheet(item)
        assert whole.startswith(begun)
        rest = whole[len(begun) :]
        return rest.split("\n")[0] + after if after else rest

    return FakeOpenAI(reply)


def url(service: FakeOpenAI) -> str:
    return service.url.removesuffix("/v1")


def test_one_call_is_paid_in_place_of_three_and_says_the_same() -> None:
    with service() as first:
        without = bill(program, ITEMS, url(first))
    with service() as second:
        ahead = bill(speculating, ITEMS, url(second))
    assert (without.calls, ahead.calls) == (3 * len(ITEMS), len(ITEMS))
    for one, counted in ((without, first), (ahead, second)):
        assert one.calls == len(counted.bodies)
        assert one.prompt_tokens == counted.prompt_tokens
        assert one.prompt_tokens == sum(len(words(prompt_of(body))) for body in counted.bodies)
        assert one.completion_tokens == counted.completion_tokens
        assert one.answers == [item["fields"] for item in ITEMS]
        assert one.left == 0
    assert without.prompt_tokens > 2.9 * ahead.prompt_tokens


def test_a_model_that_leaves_the_form_costs_more_with_equal_text() -> None:
    with service(after="\nThat is all.") as first:
        without = bill(program, ITEMS, url(first))
    with service(after="\nThat is all.") as second:
        ahead = bill(speculating, ITEMS, url(second))
    assert ahead.left == len(ITEMS)
    assert ahead.calls == without.calls
    assert ahead.completion_tokens > without.completion_tokens
    assert ahead.answers == without.answers == [item["fields"] for item in ITEMS]


def test_pages_tell_their_fields() -> None:
    for scale in (Scale(3), Scale(3, True)):
        for item in CLAIM.items(scale, 1):
            assert all(value.split()[0] in item["page"] for value in item["fields"].values())
            assert ASK not in item["page"]
