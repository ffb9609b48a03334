"""Requests: programs over HTTP against the same requests sent by hand with an httpx client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import sglang as sgl

from benchmark.frontend.primitives import BRANCHES, LIMIT
from benchmark.harness.rounds import WrongAnswer, take_turns
from benchmark.harness.tables import Figure, Row

OPTIONS = ("yes", "no", "maybe")
WINDOW = 8  # tokens before the end of the prompt from which a select is scored first
SAMPLING = {
    "max_new_tokens": 8, "n": 1, "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
    "frequency_penalty": 0.0, "presence_penalty": 0.0, "ignore_eos": False,
}  # fmt: skip
COMMIT = {"max_new_tokens": 0}


@sgl.function
def gens(s: Any, count: int) -> str:
    for number in range(count):
        s += f"\n{number}. " + sgl.gen("x", max_tokens=8)
    return str(s.text())


@sgl.function
async def agens(s: Any, count: int) -> str:
    for number in range(count):
        s += f"\n{number}. " + sgl.gen("x", max_tokens=8)
    return str(await s.atext())


@sgl.function
def selects(s: Any, count: int) -> str:
    for number in range(count):
        s += f"\n{number}. Is it true that water is wet? " + sgl.select("x", OPTIONS)
    return str(s.text())


@sgl.function
async def aselects(s: Any, count: int) -> str:
    for number in range(count):
        s += f"\n{number}. Is it true that water is wet? " + sgl.select("x", OPTIONS)
    return str(await s.atext())


def _branch(number: int) -> Any:
    return f"{number}: " + sgl.gen("x", max_tokens=8)


@sgl.function
def forks(s: Any, count: int) -> str:
    for number in range(count):
        s += f"\nround {number}\n"
        branches = s.fork(BRANCHES)
        branches += _branch
        branches.join()
        s += ", ".join(branch["x"] for branch in branches)
    return str(s.text())


@sgl.function
async def aforks(s: Any, count: int) -> str:
    for number in range(count):
        s += f"\nround {number}\n"
        branches = s.fork(BRANCHES)
        branches += _branch
        await branches.ajoin()
        s += ", ".join([await branch.aget("x") for branch in branches])
    return str(await s.atext())


Bodies = Any  # a generator of lists of bodies, each list sent at once, that returns the text


def gens_by_hand(count: int) -> Bodies:
    text = ""
    for number in range(count):
        text += f"\n{number}. "
        (reply,) = yield [{"text": text, "sampling_params": SAMPLING}]
        text += reply["text"]
    return text


def selects_by_hand(count: int) -> Bodies:
    text = ""
    for number in range(count):
        text += f"\n{number}. Is it true that water is wet? "
        (reply,) = yield [{"text": text, "sampling_params": COMMIT}]
        start = reply["meta_info"]["prompt_tokens"]
        (replies,) = yield [
            {
                "text": [text, *(text + option for option in OPTIONS)],
                "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
                "return_logprob": True,
                "return_text_in_logprobs": True,
                "logprob_start_len": start - WINDOW,
            }
        ]
        rows = [answer["meta_info"]["input_token_logprobs"][WINDOW:] for answer in replies[1:]]
        means = [sum(entry[0] for entry in row) / len(row) for row in rows]
        text += OPTIONS[means.index(max(means))]
    return text


def forks_by_hand(count: int) -> Bodies:
    text = ""
    for number in range(count):
        text += f"\nround {number}\n"
        replies = yield [
            {"text": f"{text}{branch}: ", "sampling_params": SAMPLING} for branch in range(BRANCHES)
        ]
        text += ", ".join(reply["text"] for reply in replies)
    return text


@dataclass(frozen=True)
class Case:
    """``primitives`` and requests of one of ``count`` steps."""

    name: str
    plain: Any
    twin: Any
    by_hand: Callable[[int], Bodies]
    primitives: int = 1


CASES = (
    Case("gen", gens, agens, gens_by_hand),
    Case("select", selects, aselects, selects_by_hand),
    Case(f"fork of {BRANCHES}, a gen each, join", forks, aforks, forks_by_hand, BRANCHES + 2),
)


class ByHand:
    """The two clients that a programmer would write without the language."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=None)
        self._ahttp = httpx.AsyncClient(base_url=url, timeout=None)
        self._threads = ThreadPoolExecutor(BRANCHES)

    def _post(self, body: dict[str, Any]) -> Any:
        return self._http.post("/generate", json=body).raise_for_status().json()

    async def _apost(self, body: dict[str, Any]) -> Any:
        return (await self._ahttp.post("/generate", json=body)).raise_for_status().json()

    def run(self, bodies: Bodies) -> str:
        replies: Sequence[Any] | None = None
        while True:
            try:
                asked = bodies.send(replies)
            except StopIteration as end:
                return str(end.value)
            one = len(asked) == 1
            replies = [self._post(asked[0])] if one else list(self._threads.map(self._post, asked))

    async def arun(self, bodies: Bodies) -> str:
        replies: Sequence[Any] | None = None
        while True:
            try:
                asked = bodies.send(replies)
            except StopIteration as end:
                return str(end.value)
            replies = await asyncio.gather(*map(self._apost, asked))

    async def close(self) -> None:
        self._threads.shutdown()
        self._http.close()
        await self._ahttp.aclose()


def measure(url: str, loop: asyncio.AbstractEventLoop, rounds: int, count: int) -> list[Row]:
    """Microseconds a step by hand and in the language, and the difference for each primitive.

    Raises WrongAnswer where the texts or the requests are not the same.
    """
    backend, hand, rows = sgl.RuntimeEndpoint(url), ByHand(url), []
    for case in CASES:
        steps = max(count // case.primitives, 1)
        for mode, contestants in _contestants(case, steps, backend, hand, loop).items():
            _same_requests(backend, contestants)
            rows.append(_row(f"{case.name}, {mode}", take_turns(contestants, rounds), steps, case))
    loop.run_until_complete(hand.close())
    loop.run_until_complete(backend.aclose())
    backend.shutdown()
    return rows


def _contestants(
    case: Case,
    steps: int,
    backend: sgl.RuntimeEndpoint,
    hand: ByHand,
    loop: asyncio.AbstractEventLoop,
) -> dict[str, dict[str, Callable[[], Any]]]:
    """Runs by mode, then by contestant."""
    run, greedy = loop.run_until_complete, {"backend": backend, "temperature": 0.0}
    return {
        "plain": {
            "by hand": lambda: hand.run(case.by_hand(steps)),
            "language": lambda: case.plain.run(steps, **greedy).ret_value,
        },
        "async": {
            "by hand": lambda: run(hand.arun(case.by_hand(steps))),
            "language": lambda: run(case.twin.arun(steps, **greedy)).ret_value,
        },
    }


def _row(name: str, seconds: dict[str, list[float]], steps: int, case: Case) -> Row:
    each = {who: [1e6 * value / steps for value in values] for who, values in seconds.items()}
    more = [
        (b - a) / case.primitives for a, b in zip(each["by hand"], each["language"], strict=True)
    ]
    figures = {who: Figure(values) for who, values in each.items()}
    return Row(name, {**figures, "overhead a primitive": Figure(more, limit=LIMIT)})


def _same_requests(backend: sgl.RuntimeEndpoint, contestants: dict[str, Callable[[], Any]]) -> None:
    """Each contestant once; the server tells how many requests it made, and their checksum."""
    made = {}
    for name, contestant in contestants.items():
        before = backend.get_server_info()
        contestant()
        after = backend.get_server_info()
        made[name] = {key: after[key] - before[key] for key in after}
    if made["by hand"] != made["language"]:
        raise WrongAnswer(f"other requests than by hand: {made}")
