"""Results of tools in Ollama's messages, and the calls that they answer."""

from __future__ import annotations

import random

from sglang.srt.web.ollama.ollama_bodies import (
    OllamaCall,
    OllamaChatBody,
    OllamaFunction,
    OllamaMessage,
)
from sglang.srt.web.ollama.ollama_chat import chat_of


class CountedName(str):
    """A name that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)


def calls(*pairs: tuple[str | None, str]) -> OllamaMessage:
    given = [OllamaCall(function=OllamaFunction(name=name), id=id) for id, name in pairs]
    return OllamaMessage(role="assistant", tool_calls=given)


def result(id: str | None, name: str | None) -> OllamaMessage:
    return OllamaMessage(role="tool", tool_call_id=id, tool_name=name, content="x")


def answered(*messages: OllamaMessage) -> list[tuple[str, str]]:
    """Id and name of the call that each result answers."""
    body = OllamaChatBody(model="m", messages=list(messages))
    chat = chat_of(body, "m", False)
    return [(m["tool_call_id"], m["name"]) for m in chat.messages if m["role"] == "tool"]


def test_results_answer_the_first_call_that_fits() -> None:
    rng = random.Random(7)
    names, ids = ("", "a", "b"), (None, "1", "2", "3")
    for _ in range(300):
        pairs = [(rng.choice(ids), rng.choice(names)) for _ in range(rng.randint(0, 6))]
        said = [(rng.choice(ids), rng.choice((None, *names))) for _ in range(rng.randint(1, 6))]
        left = [(id or f"call{i:05d}", name) for i, (id, name) in enumerate(pairs, 1)]
        expected = []
        for id, name in said:
            fits = [one for one in left if id in (None, one[0]) and name in (None, "", one[1])]
            expected.append(fits[0] if fits else (id or "", name or ""))
            if fits:
                left.remove(fits[0])
        assert answered(calls(*pairs), *(result(*one) for one in said)) == expected


def test_many_results_are_compared_with_few_calls_each() -> None:
    CountedName.compared, count = 0, 500
    found = answered(
        calls(*[(None, "a")] * count), *[result(None, CountedName("b")) for _ in range(count)]
    )
    assert found == [("", "b")] * count
    assert CountedName.compared < 20 * count
