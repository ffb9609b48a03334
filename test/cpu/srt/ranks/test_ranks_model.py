"""A model over several processes gives the texts of one: tensor-parallel ranks, pipeline stages and
both, with native kernels, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl
from helpers.seeds import LONG

SETTINGS: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "max_total_tokens": 400, "chunked_prefill_size": 16,
    "max_running_requests": 12, "threads": 1, "context_length": 256,
}  # fmt: skip
ARRANGEMENTS: dict[str, Any] = {
    "pp 2, tp 2": {"pp_size": 2, "tp_size": 2, "assigned_layers": "3,1"},
    "pp 3": {"pp_size": 3, "assigned_layers": "1,2,1"},
}
if LONG:
    ARRANGEMENTS |= {"tp 2": {"tp_size": 2}, "pp 4": {"pp_size": 4}}
STORY = "Once upon a time there was a small town by the sea, and in it "
SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'
)


def wishes() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Prompts, their sampling parameters and other fields: prompts of several chunks, prefixes that
    are cached or shared, more tokens than the KV cache holds."""
    plain = {"temperature": 0.0, "max_new_tokens": 40, "ignore_eos": True}
    sampled = {"temperature": 0.9, "max_new_tokens": 40, "ignore_eos": True}
    penalties = {
        "frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.2,
        "logit_bias": {"40": 2.0},
    }  # fmt: skip
    logprobs = {"return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": 0}
    found: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for number in range(5):
        text = STORY * 3 + f"number {number} "
        found.append((text, plain if number % 2 else {**sampled, "seed": number}, {}))
    found.append((STORY, {**sampled, "seed": 9, "n": 3, "top_p": 0.8}, {}))
    found.append((STORY, {**sampled, **penalties, "seed": 11}, {}))
    found.append(("A person: ", {**plain, "json_schema": SCHEMA, "ignore_eos": False}, {}))
    found.append(("Call ", {**sampled, "regex": r"[0-9]{3}-[0-9]{4}", "seed": 3}, {}))
    found.append((STORY, {**plain, "max_new_tokens": 8}, logprobs))
    found.append(("abc abc abc abc ", {**plain, "speculation": "ngram"}, {}))
    return found


def texts(engine: sgl.Engine) -> list[Any]:
    """The answers to all wishes at once."""
    import asyncio

    async def all_of() -> list[Any]:
        return await asyncio.gather(
            *(engine.async_generate(p, s, **more) for p, s, more in wishes())
        )

    return asyncio.run(all_of())


def outline(answers: list[Any]) -> list[Any]:
    """Texts and tokens, without numbers that depend on the order of sums."""
    flat = [a for answer in answers for a in (answer if isinstance(answer, list) else [answer])]
    return [(a["text"], a["output_ids"]) for a in flat]


def numbers(answers: list[Any]) -> list[float]:
    meta = answers[-2]["meta_info"]
    entries = meta["input_token_logprobs"][1:] + meta["output_token_logprobs"]
    return [entry[0] for entry in entries]


@pytest.fixture(scope="module")
def alone() -> Iterator[list[Any]]:
    with sgl.Engine(**SETTINGS) as engine:
        yield texts(engine)


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_ranks_give_the_texts_of_one(name: str, alone: list[Any]) -> None:
    with sgl.Engine(**SETTINGS, **ARRANGEMENTS[name]) as engine:
        for _ in range(2):  # the second time from the cache
            found = texts(engine)
            assert outline(found) == outline(alone)
            assert numbers(found) == pytest.approx(numbers(alone), abs=1e-3)
        assert engine.get_server_info()["stats"]["retractions"] > 0
