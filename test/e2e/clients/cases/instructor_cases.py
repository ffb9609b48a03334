"""Instructor: typed answers, in each of its ways to ask for them."""

from __future__ import annotations

import asyncio
from typing import Literal

import instructor
import openai
import pytest
from instructor import Mode
from pydantic import BaseModel, ConfigDict

MESSAGES = [{"role": "user", "content": "Extract: the blue lamp is lit."}]


class Lamp(BaseModel):
    model_config = ConfigDict(extra="forbid")

    color: Literal["red", "blue"]
    lit: bool


@pytest.fixture(scope="module")
def plain(url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS])
def test_modes(plain: openai.OpenAI, mode: Mode) -> None:
    client = instructor.from_openai(plain, mode=mode)
    lamp, completion = client.chat.completions.create_with_completion(
        model="m", messages=MESSAGES, response_model=Lamp, max_retries=0, temperature=0
    )
    assert isinstance(lamp, Lamp)
    assert completion.usage


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


def test_json_mode(plain: openai.OpenAI) -> None:
    """JSON mode sends ``json_object``, and the schema only in the prompt: any object may come."""
    client = instructor.from_openai(plain, mode=Mode.JSON)
    found = client.chat.completions.create(
        model="m", messages=MESSAGES, response_model=Anything, max_retries=0, temperature=0
    )
    assert isinstance(found, Anything)


def test_partial_and_async(plain: openai.OpenAI, url: str, key: str) -> None:
    client = instructor.from_openai(plain, mode=Mode.TOOLS)
    *_, last = client.chat.completions.create_partial(
        model="m", messages=MESSAGES, response_model=Lamp, max_retries=0, temperature=0
    )
    assert last.color in ("red", "blue")

    async def main() -> Lamp:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as other:
            return await instructor.from_openai(other, mode=Mode.TOOLS).chat.completions.create(
                model="m", messages=MESSAGES, response_model=Lamp, max_retries=0
            )

    assert isinstance(asyncio.run(main()), Lamp)


def test_provider_string(url: str, key: str) -> None:
    client = instructor.from_provider("openai/m", base_url=f"{url}/v1", api_key=key)
    assert isinstance(client.create(messages=MESSAGES, response_model=Lamp, max_retries=0), Lamp)
