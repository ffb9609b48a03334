"""Outlines' ``from_sglang`` and ``from_vllm``: types, regular expressions, choices, grammars."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Literal

import openai
import outlines
import pytest
from outlines.types import CFG, JsonSchema, Regex
from pydantic import BaseModel, ConfigDict

SCHEMA = {"type": "object", "properties": {"lit": {"type": "boolean"}}, "required": ["lit"],
          "additionalProperties": False}  # fmt: skip


class Lamp(BaseModel):
    model_config = ConfigDict(extra="forbid")

    color: Literal["red", "blue"]
    lit: bool


@pytest.fixture(scope="module")
def client(url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module", params=["from_sglang", "from_vllm"])
def model(client: openai.OpenAI, request: pytest.FixtureRequest) -> Any:
    return getattr(outlines, request.param)(client, "m")


def test_text(model: Any) -> None:
    assert model("What is 17 + 25?", temperature=0) == "42"
    assert "".join(model.stream("What is 17 + 25?", temperature=0)) == "42"


def test_types(model: Any) -> None:
    lamp = model("The blue lamp is lit.", Lamp, temperature=0)
    assert Lamp.model_validate_json(lamp)
    found = json.loads(model("Is it lit?", JsonSchema(SCHEMA), temperature=0))
    assert isinstance(found["lit"], bool)
    assert model("Is it lit?", Literal["yes", "no"], temperature=0) in ("yes", "no")
    assert re.fullmatch(r"\d{3}", model("A number:", Regex(r"\d{3}"), temperature=0))
    assert int(model("17 + 25 =", int, temperature=0, max_tokens=8)) is not None


def test_a_grammar(model: Any) -> None:
    if type(model).__name__ == "SGLang":
        with pytest.warns(UserWarning, match="EBNF"):
            found = model("Is it lit?", CFG('root ::= "yes" | "no"'), temperature=0)
    else:
        found = model("Is it lit?", CFG('root ::= "yes" | "no"'), temperature=0)
    assert found in ("yes", "no")


def test_async(url: str, key: str) -> None:
    async def main() -> str:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
            return await outlines.from_sglang(client, "m")("Lit?", Literal["yes", "no"])

    assert asyncio.run(main()) in ("yes", "no")
