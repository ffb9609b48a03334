"""Claims of the paper: a benchmark whose two sides do different work is worthless. So the program
and the client code of each run on stand-ins that answer alike, and what they ask is compared."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue
from typing import Any

import pytest
from helpers.paths import ROOT
from sglang.backend.base import Backend, Completion, Prompt
from sglang.backend.mock import decided
from sglang.ir.chat_template import template_named
from sglang.ir.choices import ChoicesMethod, Decision
from sglang.ir.params import GenParams, strings
from sglang.ir.stops import cut
from tokenizers import Tokenizer

from benchmark.harness.claim import Claim, Item, Message, Scale
from benchmark.harness.measure import run_program
from benchmark.models import EMBEDDED
from benchmark.paper import claims

FOLDER = ROOT / "benchmark"
NAMES = sorted({path.parent.name for path in FOLDER.glob("*/claim.py")} - {"harness"})
SCALES = (Scale(4), Scale(8, True))
CHATML = template_named("chatml")
WORDS = ["12", "Mara", "the", "red", "kettle.", "Answer:", "is", "so\n", "and\n\n", "8", "yes:"]
CONTEXT = 4096


def claim_of(name: str) -> Claim:
    return claims.claim(name)


@cache
def items_of(name: str, scale: Scale) -> list[Item]:
    return claim_of(name).items(scale, 0)


# -- stand-ins ---------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Asked:
    """One request, of either side. ``more``: its constraint, or its options."""

    prompt: str
    limit: int
    stops: tuple[str, ...] = ()
    more: str = ""


def reply(prompt: str, limit: int, stops: Sequence[str]) -> str:
    """Text of both stand-ins: words that depend on the prompt and its limit alone."""
    draw = random.Random(f"{limit} {prompt}")
    text = "".join(f" {draw.choice(WORDS)}" for _ in range(min(limit, 20)))
    found = cut(text, list(stops))
    return text if found is None else text[: found[0]]


def chosen(prompt: str, options: Sequence[str]) -> int:
    return random.Random(prompt).randrange(len(options))


def own(stops: Sequence[str]) -> tuple[str, ...]:
    """Stop strings without those of the chat template, which chat requests never name."""
    return tuple(sorted(set(stops) - set(CHATML.stop)))


class Side(Backend):
    """Records the calls of our program, on a backend that takes constraints as they are."""

    name = "recording"
    chat_template = CHATML
    constraints = frozenset({"regex", "json_schema"})

    def __init__(self) -> None:
        self.asked: Counter[Asked] = Counter()
        self.lock = threading.Lock()
        self.wait: Callable[[], None] = lambda: None

    def note(self, asked: Asked, times: int = 1) -> None:
        with self.lock:
            self.asked[asked] += times
        self.wait()

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        stops = own(strings(params.stop))
        limit, n = params.max_new_tokens or 0, params.n or 1
        held = params.regex or canonical(params.json_schema)
        self.note(Asked(prompt.text, limit, stops, held), n)
        return [Completion(reply(prompt.text, limit, stops))] * n

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        self.note(Asked(prompt.text, 0, (), repr(list(options))))
        return decided(options[chosen(prompt.text, options)], options, method)


class Client:
    """Records the calls of the client code: ``Api``."""

    def __init__(self) -> None:
        self.asked: Counter[Asked] = Counter()
        self.waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]

    async def complete(
        self, prompt: str, max_tokens: int, *, stop: Sequence[str] = (), regex: str = "",
        json_schema: Mapping[str, Any] | None = None, n: int = 1,
    ) -> list[str]:  # fmt: skip
        held = regex or canonical(json_schema)
        self.asked[Asked(prompt, max_tokens, own(stop), held)] += n
        await self.wait()
        return [reply(prompt, max_tokens, own(stop))] * n

    async def chat(
        self, messages: Sequence[Message], max_tokens: int, *, stop: Sequence[str] = ()
    ) -> str:
        return (await self.complete(written(messages), max_tokens, stop=stop))[0]

    async def choose(self, prompt: str, options: Sequence[str]) -> int:
        self.asked[Asked(prompt, 0, (), repr(list(options)))] += 1
        await self.wait()
        return chosen(prompt, options)


def canonical(schema: Any) -> str:
    if schema is None:
        return ""
    return json.dumps(json.loads(schema) if isinstance(schema, str) else schema, sort_keys=True)


def written(messages: Sequence[Message]) -> str:
    """ChatML, as a server writes it; a last turn of the assistant's is gone on with."""
    text = ""
    for message in messages:
        content = message["content"]
        if not isinstance(content, str):
            content = "".join(part.get("text", CHATML.image_token) for part in content)
        text += f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"
    if messages[-1]["role"] == "assistant":
        return text.removesuffix("<|im_end|>\n")
    return text + "<|im_start|>assistant\n"


async def rounds_of(claim: Claim, client: Client, items: Sequence[Item]) -> tuple[list[Any], int]:
    """The client's answers, and its number of rounds: all calls that need no further answer are one
    round."""
    task, rounds = asyncio.gather(*(claim.plain(client, item) for item in items)), 0
    while not task.done():
        for _ in range(20):  # steps of the loop, by which all tasks have come to wait
            await asyncio.sleep(0)
        if client.waiting:
            rounds += 1
        for future in client.waiting:
            future.set_result(None)
        client.waiting = []
    return list(await task), rounds


class Gate:
    """Lets calls of threads through in rounds, when no more have come for a while. A thread that is
    late makes a round of its own, so there may be too many rounds, never too few."""

    def __init__(self) -> None:
        self.rounds = 0
        self.waiting: SimpleQueue[threading.Event] = SimpleQueue()
        self.over = threading.Event()

    def wait(self) -> None:
        event = threading.Event()
        self.waiting.put(event)
        assert event.wait(60)

    def open(self) -> None:
        seen = 0
        while not self.over.wait(0.003):
            count = self.waiting.qsize()
            if count and count == seen:
                self.rounds += 1
                for _ in range(count):
                    self.waiting.get().set()
            seen = self.waiting.qsize()


@cache
def both(name: str, scale: Scale) -> tuple[Side, list[Any], Client, list[Any]]:
    ours, theirs, claim = Side(), Client(), claim_of(name)
    items = items_of(name, scale)
    first = run_program(claim, ours, items, "throughput")
    sent = json.loads(json.dumps(items))  # as they come to a library in a process of its own
    second, _ = asyncio.run(rounds_of(claim, theirs, sent))
    return ours, first.answers, theirs, second


# -- properties of every claim -----------------------------------------------------------------


def test_the_report_has_every_claim() -> None:
    assert sorted(claims.NAMES) == NAMES
    promised = {name for name in NAMES if claim_of(name).speedup is not None}
    assert promised == set(claims.PROMISED)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", SCALES, ids=["short", "long"])
def test_both_sides_ask_the_same_and_get_the_same(name: str, scale: Scale) -> None:
    ours, first, theirs, second = both(name, scale)
    assert ours.asked
    only_ours, only_theirs = ours.asked - theirs.asked, theirs.asked - ours.asked
    assert not only_ours, f"the program alone asks {min(only_ours)}"
    assert not only_theirs, f"the client alone asks {min(only_theirs)}"
    assert json.loads(json.dumps(first)) == json.loads(json.dumps(second))


@pytest.mark.parametrize("name", NAMES)
def test_the_client_waits_no_more_often_than_the_program(name: str) -> None:
    claim, item, gate, ours = claim_of(name), items_of(name, Scale(4))[0], Gate(), Side()
    ours.wait = gate.wait
    opener = threading.Thread(target=gate.open)
    opener.start()
    try:
        claim.program.run(backend=ours, **item)
    finally:
        gate.over.set()
        opener.join()
    _, rounds = asyncio.run(rounds_of(claim, Client(), [item]))
    assert 0 < rounds <= gate.rounds


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_items_are_plain_data_and_a_function_of_scale_and_seed(name: str) -> None:
    claim = claim_of(name)
    for scale in SCALES:
        items = items_of(name, scale)
        assert len(items) == scale.items
        assert claim.items(scale, 0) == items
        again = json.dumps(items, sort_keys=True)
        assert json.dumps(json.loads(again), sort_keys=True) == again
        assert claim.items(scale, 1) != items
    many = [json.dumps(item, sort_keys=True) for item in claim.items(Scale(64, True), 0)]
    assert len(set(many)) > 60, "items that come again are answered by the cache"


@pytest.mark.parametrize("name", NAMES)
def test_other_seeds_share_next_to_nothing(name: str) -> None:
    """Not every server can be made to forget the round before. 120 letters are some 30 tokens."""
    claim, scale = claim_of(name), Scale(8, True)
    first, second = (asked_by_client(claim, claim.items(scale, seed)) for seed in (0, 1000))
    shared = 0
    for prompt in second:
        at = bisect(first, prompt)
        near = first[max(0, at - 1) : at + 1]  # sorted neighbours begin most alike
        shared += max(alike(prompt, other) for other in near)
    assert shared < max(0.15 * sum(map(len, second)), 120 * len(second))


def alike(one: str, other: str) -> int:
    """Letters that they have in common at their beginnings."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other))
    )


def asked_by_client(claim: Claim, items: Sequence[Item]) -> list[str]:
    client = Client()
    asyncio.run(rounds_of(claim, client, items))
    return sorted({request.prompt for request in client.asked})


@pytest.mark.parametrize("name", NAMES)
def test_short_lengths_fit_the_embedded_model(name: str) -> None:
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    asked = both(name, Scale(4))[0].asked
    prompts = tokenizer.encode_batch([request.prompt for request in asked])
    sizes = [len(found.ids) + request.limit for found, request in zip(prompts, asked)]
    assert max(sizes) <= CONTEXT


@pytest.mark.parametrize("name", NAMES)
def test_answers_of_any_kind_are_judged(name: str) -> None:
    claim = claim_of(name)
    found = [claim.right(item, answer) for item, answer in zip(*_answered(name))]
    assert set(found) <= {True, False, None}
    assert len({value is None for value in found}) == 1, "some items have a right answer"


def _answered(name: str) -> tuple[list[Item], list[Any]]:
    return items_of(name, Scale(4)), both(name, Scale(4))[1]
