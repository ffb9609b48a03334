"""Plans of the paper's workloads against what the embedded model then computes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl

pytest.importorskip("torch")
harness = pytest.importorskip("benchmark.harness.claim")


@pytest.fixture(scope="module")
def engine() -> Iterator[sgl.Engine]:
    """One pass at a time: else the end token of a text may be computed as well."""
    settings: dict[str, Any] = {"max_total_tokens": 20000, "disable_overlap_schedule": True}
    with sgl.Engine(**settings, log_level="warning") as engine:
        yield engine


CLAIMS = ("few_shot", "hellaswag", "generative_agents", "multi_turn_short", "multi_document_qa")


@pytest.mark.parametrize("name", CLAIMS)
def test_computed_tokens_are_foretold(engine: sgl.Engine, name: str) -> None:
    """The plan knows nothing of the model's texts, except that they end before their limits."""
    claim = importlib.import_module(f"benchmark.{name}.claim").CLAIM
    items = claim.items(harness.Scale(4), 1)
    engine.flush_cache()
    plan = claim.program.plan(items, backend=engine, temperature=0)
    before = engine.get_server_info()["stats"]
    states = claim.program.run_batch(items, backend=engine, temperature=0)
    after = engine.get_server_info()["stats"]
    assert abs(plan.compare(states).error) <= 0.01, plan.compare(states)
    computed, drawn, drafted, ended = (
        after[name] - before[name]
        for name in ("computed_tokens", "generated_tokens", "drafted_tokens", "finished")
    )
    # Every generation computes the tokens it samples, except the last one, and drafts that were
    # wrong.
    assert plan.computed_tokens <= computed + ended
    assert computed <= 1.01 * plan.computed_tokens + drawn + drafted
