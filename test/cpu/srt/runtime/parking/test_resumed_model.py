"""A real model's generation in pieces is the generation in one, whatever it depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl

pytest.importorskip("torch")

PROMPT = "Question: What is 17 + 25?\nAnswer:"
SEEDED = {"temperature": 1.0, "seed": 11}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "ignore_eos": True},
    "seeded": {**SEEDED, "ignore_eos": True},
    "penalties": {**SEEDED, "frequency_penalty": 1.5, "presence_penalty": 0.5,
                  "repetition_penalty": 1.3, "ignore_eos": True},
    "minimum": {**SEEDED, "min_new_tokens": 15},
    "regex": {**SEEDED, "regex": "[a-f]{6}-[0-9]{6}-(x|y|zz){8}"},
    "json": {**SEEDED, "json_schema": {"type": "array", "items": {"type": "integer"},
                                       "minItems": 5, "maxItems": 9}},
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[sgl.Engine]:
    with sgl.Engine(
        device="cpu", threads=1, max_total_tokens=4000, log_level="warning"
    ) as engine:  # fmt: skip
        yield engine


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_the_whole(engine: sgl.Engine, kind: str) -> None:
    settings = {**KINDS[kind], "max_new_tokens": 20}
    whole = engine.generate(PROMPT, settings)
    found = engine.generate(PROMPT, {**settings, **limits(settings, 0)}, park={"tool": "none"})
    ids = list(found["output_ids"])
    while len(ids) < len(whole["output_ids"]):
        resume = found["meta_info"]["finish_reason"]["resume"]
        found = engine.generate(
            sampling_params=limits(settings, len(ids)), resume=resume, park={}
        )  # fmt: skip
        ids += found["output_ids"]
    assert ids == whole["output_ids"]


def limits(settings: dict[str, Any], done: int) -> dict[str, Any]:
    """Limits of the next piece. ``max_new_tokens`` counts from the piece's own beginning,
    ``min_new_tokens`` from that of the generation."""
    if "min_new_tokens" not in settings:
        return {"max_new_tokens": 5}
    count = 15 if done else 5
    return {"max_new_tokens": count, "min_new_tokens": count}


def test_errors_have_the_status_of_http(engine: sgl.Engine) -> None:
    found = engine.generate(PROMPT, {"max_new_tokens": 3, "temperature": 0}, park={})
    resume = found["meta_info"]["finish_reason"]["resume"]
    one = engine.generate(" x", resume=resume, idempotency_key="k")
    assert engine.generate(" x", resume=resume, idempotency_key="k") == one
    for name, status in ((resume, 409), ("unknown", 404)):
        with pytest.raises(sgl.BackendError) as caught:
            engine.generate(" x", resume=name)
        assert caught.value.status == status
