"""Errands of customers, each a few requests, all chosen by the customer's seed."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from helpers.apis import APIS, user

from soak import texts
from soak.bad import BAD
from soak.customer import Customer, Violation, ends
from soak.goldens import GOLDENS, essence
from soak.wire import POLITE, Manners, Reply, manners

Json = dict[str, Any]

TOOLS = [
    {
        "name": "add",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
    {"name": "stop", "strict": True, "parameters": {"type": "object", "properties": {},
                                                    "additionalProperties": False}},
]  # fmt: skip
DOOMED = "key-doomed"  # the requests of this key are aborted all at once
TOP = "key-top"
TERMINAL = ("completed", "incomplete", "cancelled", "failed")
_numbers = itertools.count()


class Golden:
    """The golden requests and what they say. ``expected`` is set by the first round."""

    def __init__(self) -> None:
        self.expected: list[Any] = [None] * len(GOLDENS)

    async def __call__(self, c: Customer) -> None:
        await self.one(c, c.random.randrange(len(GOLDENS)))

    async def one(self, c: Customer, which: int) -> None:
        path, body = GOLDENS[which]
        reply = await c.ask(path, body)
        if reply is None:
            return
        found = essence(reply.json())
        if self.expected[which] is None:
            self.expected[which] = found
        if found != self.expected[which]:
            raise Violation(f"golden {which}, {path}: {found}, not {self.expected[which]}")


def rid() -> str:
    return f"soak-{next(_numbers)}"


# -- text -----------------------------------------------------------------------------------------


async def text(c: Customer) -> None:
    """Generate text by a random API."""
    api, stream = c.random.choice([*APIS.values()]), c.random.random() < 0.5
    body, count = api.body(texts.prompt(c.random), stream, **texts.sampling(c.random)), 1
    if c.random.random() < 0.2:
        body |= api.extra
    if c.random.random() < 0.2 and api.path in ("/generate", "/v1/completions"):
        count = c.random.randint(2, 3)
        name = "text" if api.path == "/generate" else "prompt"
        if c.random.random() < 0.5:
            body[name] = [body[name], *(texts.prompt(c.random) for _ in range(count - 1))]
        else:
            body.get("sampling_params", body)["n"] = count
    if c.random.random() < 0.1:
        body["cache_salt"] = c.random.choice("ab")
    if c.random.random() < 0.1:
        body["priority"] = c.random.randint(-5, 5)
    await c.ask(api.path, body, way=manners(c.random), check=lambda r: ends(r, stream, count))


async def constrained(c: Customer) -> None:
    """The text keeps its constraint, by whatever API."""
    api, stream = c.random.choice([*APIS.values()]), c.random.random() < 0.5
    asked, keeps = texts.constraint(c.random)
    body = api.body(texts.prompt(c.random), stream, max_tokens=200, **asked)

    def check(reply: Reply) -> str:
        ended = ends(reply, stream)
        if not ended:
            found = api.text(reply.response(), stream)
            assert keeps(found), f"{found!r} breaks {asked}"
        return ended

    await c.ask(api.path, body, way=manners(c.random), check=check)


async def parts(c: Customer) -> None:
    lines = [f"{texts.words(c.random, 6)}.\n" for _ in range(c.random.randint(1, 4))]
    body = {"parts": [f"{texts.words(c.random, 9)}.\n", lines, "In short:"],
            "sampling_params": {"max_new_tokens": 12}}  # fmt: skip
    await c.ask("/generate", body, way=manners(c.random), check=lambda r: ends(r, False))


async def best(c: Customer) -> None:
    """Plain completions with what only they have."""
    more: Json = c.random.choice(
        [{"echo": True, "logprobs": 3}, {"best_of": 3}, {"max_tokens": 0, "echo": True},
         {"return_token_ids": True}]
    )  # fmt: skip
    body = {"prompt": texts.prompt(c.random), "max_tokens": 8, **more}
    await c.ask("/v1/completions", body, way=manners(c.random), check=lambda r: ends(r, False))


async def tools(c: Customer) -> None:
    """Calls that must be, and calls that may be."""
    choice, stream = c.random.choice(["auto", "required", "one"]), c.random.random() < 0.5
    one = {"type": "function", "function": {"name": "add"}}
    body = {
        "messages": user(texts.prompt(c.random)), "stream": stream, "max_tokens": 150,
        "tools": [{"type": "function", "function": tool} for tool in TOOLS],
        "tool_choice": one if choice == "one" else choice, "parallel_tool_calls": False,
    }  # fmt: skip

    def check(reply: Reply) -> str:
        ended = ends(reply, stream)
        if not ended and not stream and choice == "one":
            (call,) = reply.json()["choices"][0]["message"]["tool_calls"]
            assert 0 <= json.loads(call["function"]["arguments"])["a"] <= 99
        return ended

    await c.ask("/v1/chat/completions", body, way=manners(c.random), check=check)


# -- requests that generate nothing ---------------------------------------------------------------


async def vectors(c: Customer) -> None:
    inputs = [texts.prompt(c.random) for _ in range(c.random.randint(1, 5))]
    asks: list[tuple[str, Json]] = [
        ("/v1/embeddings", {"input": inputs, "encoding_format": "base64"}),
        ("/v1/embeddings", {"input": inputs, "pooling": "mean"}),
        ("/encode", {"text": inputs[0]}),
        ("/v1/score", {"query": inputs[0], "items": inputs, "label_token_ids": [7, 8]}),
        ("/v1/rerank", {"query": inputs[0], "documents": inputs}),
    ]
    path, body = c.random.choice(asks)
    await c.ask(path, body, way=manners(c.random))


async def tokens(c: Customer) -> None:
    text = texts.prompt(c.random)
    reply = await c.ask("/tokenize", {"prompt": text, "add_special_tokens": False})
    if reply is not None:
        back = await c.ask("/detokenize", {"tokens": reply.json()["tokens"]})
        if back is not None and back.json()["text"] != text:
            raise Violation(f"{text!r} comes back as {back.json()['text']!r}")
    asks: list[tuple[str, Json]] = [
        ("/apply-template", {"messages": user(text)}),
        ("/v1/messages/count_tokens", {"messages": user(text)}),
        ("/v1/responses/input_tokens", {"input": text}),
    ]
    path, body = c.random.choice(asks)
    await c.ask(path, body, way=manners(c.random))


# -- responses ------------------------------------------------------------------------------------


async def stored(c: Customer) -> None:
    """An answer, what is stored of it, one that goes on from it, and nothing any more."""
    body: Json = {"input": texts.prompt(c.random), "max_output_tokens": 12}
    first = await c.ask("/v1/responses", body)
    if first is None:
        return
    path = f"/v1/responses/{first.json()['id']}"
    again = await c.ask(path)
    if again is not None and again.json() != first.json():
        raise Violation(f"stored {again.json()}, answered {first.json()}")
    await c.ask(f"{path}/input_items")
    await c.ask("/v1/responses", {**body, "previous_response_id": first.json()["id"]},
                way=manners(c.random))  # fmt: skip
    if await c.ask(path, method="DELETE") is not None:
        await c.ask(path, expect=(404,))


async def background(c: Customer) -> None:
    """Written without a connection: watched, cancelled, forgotten or streamed again."""
    body: Json = {"input": texts.prompt(c.random), "background": True,
                  "max_output_tokens": c.random.choice([4, 30, 200])}  # fmt: skip
    first = await c.ask("/v1/responses", body)
    if first is None:
        return
    path, plan = f"/v1/responses/{first.json()['id']}", c.random.choice(["cancel", "forget", ""])
    await asyncio.sleep(c.random.choice([0, 0.05, 0.5]))
    if plan == "forget":
        if await c.ask(path, method="DELETE") is not None:
            await c.ask(path, expect=(404,))
        return
    if plan == "cancel":
        await c.ask(f"{path}/cancel", method="POST")
    for _ in range(3000):
        seen = await c.ask(path)
        if seen is None or seen.json()["status"] in TERMINAL:
            return
        await asyncio.sleep(0.1)
    assert seen is not None
    raise Violation(f"a response in the background has no end: {seen.json()}")


async def resumed(c: Customer) -> None:
    """A stream in the background whose client goes, and comes back for the rest."""
    body: Json = {"input": texts.prompt(c.random), "background": True, "stream": True,
                  "max_output_tokens": 60, "ignore_eos": True}  # fmt: skip
    first = await c.ask("/v1/responses", body, check=lambda r: ends(r, True))
    if first is None:
        return
    values = [json.loads(line[6:]) for line in first.text.split("\n") if line.startswith("data: ")]
    path, at = f"/v1/responses/{values[0]['response']['id']}", c.random.randrange(len(values) - 1)
    rest = await c.ask(f"{path}?stream=true&starting_after={at}", check=lambda r: ends(r, True))
    if rest is not None:
        found = [json.loads(line[6:]) for line in rest.text.split("\n") if line[:6] == "data: "]
        if found != values[at + 1 :]:
            raise Violation(f"{len(found)} events come again behind the {at}th of {len(values)}")


# -- others' business -----------------------------------------------------------------------------


async def aborted(c: Customer) -> None:
    """Abort by name, or all requests of a key: each ends with its text so far."""
    everything, name = c.random.random() < 0.3, rid()
    key, api = (DOOMED if everything else c.key), c.random.choice([*APIS.values()])
    stream = c.random.random() < 0.5
    body = api.body(texts.prompt(c.random), stream, max_tokens=400, ignore_eos=True, rid=name)
    asked = c.ask(api.path, body, key=key, check=lambda r: ends(r, stream))

    async def abort() -> None:
        await asyncio.sleep(c.random.choice([0, 0.05, 0.3, 1.0]))
        what: Json = {"abort_all": True} if everything else {"rid": name}
        await c.ask("/abort_request", what, key=key)

    await asyncio.gather(asked, abort())


async def explained(c: Customer) -> None:
    """The reasons add up; other keys get no explanation."""
    name = rid()
    body = {"text": texts.prompt(c.random), "rid": name, "sampling_params": {"max_new_tokens": 2}}
    if await c.ask("/generate", body) is None:
        return
    reply = await c.ask(f"/explain/{name}")
    if reply is not None:
        (prompt,) = reply.json()["prompts"]
        told = sum(reason["tokens"] for reason in prompt["reasons"])
        if told != prompt["prompt_tokens"]:
            raise Violation(f"the reasons of {name} add up to {told}: {prompt}")
    await c.ask(f"/explain/{name}", expect=(404,), key=DOOMED)


async def admins(c: Customer) -> None:
    """Routes about all clients, requested by the admin and by others."""
    asks: list[tuple[str, str, tuple[int, ...], Manners]] = [
        ("GET", "/metrics", (200,), POLITE),
        ("GET", "/server_info", (200,), POLITE),
        ("GET", "/live?limit=50", (200,), POLITE),
        ("GET", "/live/events?interval=0.1", (200,), Manners(leaves=c.random.randrange(9000))),
        ("GET", "/openapi.json", (200,), POLITE),
        ("GET", "/v1/models", (200,), POLITE),
        ("GET", "/health", (200,), POLITE),
        ("GET", "/", (200,), manners(c.random)),
        ("POST", "/flush_cache", (200, 400), POLITE),
    ]
    method, path, expect, way = c.random.choice(asks)
    await c.ask(path, method=method, expect=expect, way=way, key=TOP)
    if path in ("/metrics", "/server_info", "/flush_cache"):
        await c.ask(path, method=method, expect=(403,))
    await c.ask(path, method=method, expect=(401,), key=c.random.choice(["wrong", "key"]))


async def bad(c: Customer) -> None:
    status, path, body = c.random.choice(BAD)
    await c.ask(path, body, method="POST", expect=(status,))


ERRANDS: dict[Callable[[Customer], Awaitable[None]], int] = {
    text: 12, constrained: 6, parts: 2, best: 3, tools: 3, vectors: 4, tokens: 2, stored: 2,
    background: 2, resumed: 1, aborted: 3, explained: 1, admins: 3, bad: 6,
}  # fmt: skip
