"""Asynchronous: several conversations in one event loop, each streamed to its own reader."""

from __future__ import annotations

import asyncio

import sglang as sgl
from connect import connect

PEOPLE = {"Nora": "Lisbon", "Amir": "Cairo", "Ines": "Porto"}


@sgl.function
async def introduction(s, name, city):
    s += sgl.user(f"My name is {name}. I live in {city}.")
    s += sgl.assistant(sgl.gen("greeting", max_tokens=32))
    s += sgl.user("Where do I live?")
    s += sgl.assistant(sgl.gen("city", max_tokens=32))


async def listen(name: str, city: str) -> str:
    state = await introduction.arun(name, city, temperature=0, stream=True)
    async for piece in state.text_async_iter("greeting"):
        print(f"to {name}: {piece}")
    return str(await state.aget("city"))


async def listen_to_all() -> list[str]:
    return await asyncio.gather(*(listen(name, city) for name, city in PEOPLE.items()))


def main() -> list[str]:
    answers = asyncio.run(listen_to_all())
    print(*answers, sep="\n")
    return answers


if __name__ == "__main__":
    connect()
    main()
