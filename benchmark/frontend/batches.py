"""Batches: ``run_batch`` and ``arun_batch`` against asyncio clients written by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import sglang as sgl
from sglang.srt.commands.bench.load_client import Http

from benchmark.frontend.requests import SAMPLING
from benchmark.harness.rounds import take_turns
from benchmark.harness.tables import Figure, Row

CONCURRENCY = 64


@sgl.function
def answer(s: Any, question: str) -> None:
    s += f"Q: {question}\nA:" + sgl.gen("answer", max_tokens=8)
    s += "\nWhy:" + sgl.gen("why", max_tokens=8)


@sgl.function
async def aanswer(s: Any, question: str) -> None:
    s += f"Q: {question}\nA:" + sgl.gen("answer", max_tokens=8)
    s += "\nWhy:" + sgl.gen("why", max_tokens=8)


async def by_hand(post: Callable[[Any], Awaitable[Any]], items: list[dict[str, str]]) -> list[str]:
    """The same requests, as many at once."""
    slots = asyncio.Semaphore(CONCURRENCY)

    async def one(question: str) -> str:
        async with slots:
            text: str = f"Q: {question}\nA:"
            text += (await post({"text": text, "sampling_params": SAMPLING}))["text"]
            text += "\nWhy:"
            text += (await post({"text": text, "sampling_params": SAMPLING}))["text"]
            return text

    return list(await asyncio.gather(*(one(item["question"]) for item in items)))


async def _abatch(backend: Any, items: list[dict[str, str]]) -> list[str]:
    states = aanswer.arun_batch(items, backend=backend, concurrency=CONCURRENCY, temperature=0.0)
    return [await state.atext() async for state in states]


def _batch(backend: Any, items: list[dict[str, str]]) -> list[str]:
    states = answer.run_batch(items, backend=backend, num_threads=CONCURRENCY, temperature=0.0)
    return [state.text() for state in states]


def measure(
    name: str, url: str, loop: asyncio.AbstractEventLoop, rounds: int, count: int
) -> list[Row]:
    """Milliseconds an item of two gens, and how many times as fast as by hand with httpx.

    Raises WrongAnswer where the texts are not the same.
    """
    items = [{"question": f"How much is {n} and {n + 1}?"} for n in range(count)]
    backend, lean = sgl.RuntimeEndpoint(url), Http(url)
    limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)
    client = httpx.AsyncClient(base_url=url, timeout=None, limits=limits)

    async def post(body: Any) -> Any:
        return (await client.post("/generate", json=body)).raise_for_status().json()

    run = loop.run_until_complete
    seconds = take_turns(
        {
            "by hand, httpx": lambda: run(by_hand(post, items)),
            "by hand, streams": lambda: run(
                by_hand(lambda body: lean.json("POST", "/generate", body), items)
            ),
            "run_batch": lambda: _batch(backend, items),
            "arun_batch": lambda: run(_abatch(backend, items)),
        },
        rounds,
    )
    run(client.aclose())
    run(lean.close())
    run(backend.aclose())
    backend.shutdown()
    figures = {who: Figure([1e3 * s / count for s in spent]) for who, spent in seconds.items()}
    for who in ("run_batch", "arun_batch"):
        times = [a / b for a, b in zip(seconds["by hand, httpx"], seconds[who], strict=True)]
        figures[f"{who}, times as fast"] = Figure(times, limit=1.0, above=False)
    return [Row(name, figures)]
