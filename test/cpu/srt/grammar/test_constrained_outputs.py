"""A finished text satisfies its constraint with any model: random weights write under real schemas
and patterns.

CONSTRAINED_OUTPUTS=1000 asks for more.
"""

from __future__ import annotations

import json
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sglang as sgl
from helpers.corpora import regexes, schemas
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from sglang.errors import BackendError

pytest.importorskip("torch")
COUNT = int(os.environ.get("CONSTRAINED_OUTPUTS", "60"))


@pytest.fixture(scope="module")
def engine() -> Any:
    with sgl.Engine(
        device="cpu", load_format="dummy", random_seed=5, max_total_tokens=32768, threads=1,
        log_level="error",
    ) as engine:  # fmt: skip
        yield engine


def generate(engine: sgl.Engine, asked: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """Index, finish reason and text of each whose constraint can be enforced."""

    def one(i: int) -> tuple[int, str, str] | None:
        params = {**asked[i], "max_new_tokens": 200, "sampling_seed": i, "top_p": 0.9}
        try:
            out = engine.generate("It is", params)
        except BackendError as error:
            if error.status != 400:
                raise
            return None
        return i, out["meta_info"]["finish_reason"]["type"], out["text"]

    with ThreadPoolExecutor(32) as pool:
        return [found for found in pool.map(one, range(len(asked))) if found]


def test_schemas(engine: sgl.Engine) -> None:
    entries = random.Random(1).sample(schemas(), min(COUNT, len(schemas())))
    asked = [{"json_schema": entry.schema} for entry in entries]
    finished = 0
    for i, reason, text in generate(engine, asked):
        assert reason in ("stop", "length"), (entries[i].name, text)
        if reason == "stop":
            finished += 1
            schema = json.loads(entries[i].schema)
            validator_for(schema, Draft202012Validator)(schema).validate(json.loads(text))
    assert finished > COUNT / 10


def test_patterns(engine: sgl.Engine) -> None:
    entries = random.Random(1).sample(regexes(), min(COUNT, len(regexes())))
    finished = 0
    for i, reason, text in generate(engine, [{"regex": entry.pattern} for entry in entries]):
        assert reason in ("stop", "length"), (entries[i].pattern, text)
        if reason == "stop":
            finished += 1
            assert re.fullmatch(entries[i].pattern, text), (entries[i].pattern, text)
    assert finished > COUNT / 4
