"""The real engine over virtual stages: bubbles, latency, a prompt alone; how costs are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.pipeline.figures import COLUMNS, Point, Scope, alone, measured, reach
from benchmark.pipeline.loads import Asked, load
from benchmark.pipeline.virtual_pipeline import ASSUMED, ModelCosts, Outcome, Setting, play

COSTS = ModelCosts.read()


def outcome(budget: str, kind: str = "sharegpt", seconds: float = 5.0, **more: object) -> Outcome:
    setting = replace(Setting(budget, COSTS), **more)  # type: ignore[arg-type]
    return play(setting, load(kind, 6.0, seconds, 0), seconds)


def test_throttling_leaves_fewer_bubbles() -> None:
    sarathi, throttle, balance = map(outcome, ("sarathi", "throttle", "balance"))
    for found in (throttle, balance):
        assert found.bubble < 0.5 * sarathi.bubble
        assert found.ttft < sarathi.ttft
        assert found.inside > sarathi.inside
    assert balance.error < 0.1, "the costs of the stages are learnt"


def test_a_run_is_a_function_of_its_setting() -> None:
    one, two = outcome("balance", seconds=1.0), outcome("balance", seconds=1.0)
    assert one == two
    assert outcome("sarathi", seconds=1.0) != one


def test_one_request_takes_what_its_stages_take() -> None:
    """A prompt in one pass, then a token at a time, through four stages and four hops."""
    found = play(Setting("fixed", COSTS), [Asked(0.0, 1000, 3)], 1.0)
    dense, context, attention = 0.584 * 1000, 3.04e-4 * 1000, 6e-6 * 1000**2
    assert 1e3 * found.ttft == pytest.approx(dense + context + attention + 4 * 0.5)
    (life,) = found.lives
    assert 1e3 * (life.ended - life.first) == pytest.approx(2 * (72 + 4 * 0.5), rel=0.01)


@pytest.mark.slow
def test_chunks_are_never_slower_than_none() -> None:
    rows = list(alone(Scope(COSTS, 4, 1.0, 1, (1.0, 1.0))))
    found = {(tokens, arm): seconds for tokens, arm, seconds in rows}
    for tokens in {tokens for tokens, _, _ in rows}:
        assert found[tokens, "balance"] <= 1.001 * found[tokens, "no chunks"]
    longest = max(tokens for tokens, _, _ in rows)
    assert found[longest, "one stage"] > 3 * found[longest, "balance"]


@pytest.mark.slow
def test_a_throttle_without_a_term_differs() -> None:
    def run(**more: object) -> Outcome:
        return outcome("throttle", "azure", 3.0, capacity=12_000, **more)

    whole = run()
    for changed in (run(without="WT"), run(without="UT"), run(limits=(("iterations", 1),))):
        assert changed != whole


def test_the_rate_at_an_attainment_is_interpolated() -> None:
    def point(rate: int, share: float) -> Point:
        values = [share if column == "SLO" else 0.0 for column in COLUMNS]
        return Point("14", f"{rate}/s", "x", tuple(values))

    assert reach([point(4, 1.0), point(8, 0.6), point(12, 0.1)], "x", 0.8) == pytest.approx(6.0)
    assert reach([point(4, 0.5)], "x", 0.8) < 4
    assert reach([point(4, 0.9)], "x", 0.8) == 4
    assert reach([], "x", 0.8) == 0


def test_lengths_are_those_of_their_trace() -> None:
    requests = load("azure", 20.0, 100.0, 0)
    assert len(requests) == pytest.approx(2000, rel=0.1)
    assert sum(r.prompt for r in requests) / len(requests) == pytest.approx(1155, rel=0.15)
    assert load("azure", 20.0, 100.0, 0) == requests
    long = load("long", 20.0, 100.0, 0)
    assert sum(r.prompt > 8000 for r in long) / len(long) == pytest.approx(0.08, rel=0.4)


def test_a_cost_file_without_a_number_is_refused(tmp_path: Path) -> None:
    data = json.loads(ASSUMED.read_text())
    del data["token_ms"]
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(data))
    with pytest.raises(KeyError, match="token_ms"):
        ModelCosts.read(path)


def test_means_are_over_all_seeds() -> None:
    scope = Scope(COSTS, 4, 2.0, 2, (1.0, 1.0))
    point = measured(scope, "x", "4/s", "fixed", Setting("fixed", COSTS), "sharegpt", 4.0)
    ones = [play(Setting("fixed", COSTS), load("sharegpt", 4.0, 2.0, s), 2.0) for s in (0, 1)]
    assert point["TTFT s"] == pytest.approx((ones[0].ttft + ones[1].ttft) / 2)
