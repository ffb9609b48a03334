"""The simulation of routing: nothing is lost, memory adds up, and equal seeds give equal runs."""

from __future__ import annotations

import pytest

from benchmark.routing import faults
from benchmark.routing.__main__ import main
from benchmark.routing.figures import run_of
from benchmark.routing.served_engine import Machine, Served, ServedEngine
from benchmark.routing.simulation import Setting, Simulation
from benchmark.routing.traffic import Agents, Chats, text

SMALL = Chats(rate=24.0, seconds=12.0, seed=3)


def test_an_engine_serves_at_the_speed_of_its_machine() -> None:
    engine = ServedEngine("e", Machine())
    request = Served(text(1, 512 + 32 + 100), 512 + 32, 0.0)
    engine.submit(request, 0.0)
    while engine.next_at < float("inf"):
        engine.advance(engine.next_at)
        engine.check()
    chunks = (512 + 32 + 32) / 512
    assert request.first == pytest.approx(chunks * 512 * 0.00005)
    assert request.ended - request.first == pytest.approx(100 * 0.012)
    again = Served(text(1, 512 + 32), 512, engine.clock.now())
    engine.submit(again, engine.clock.now())
    assert again.cached == 496  # all whole pages but the last token's


@pytest.mark.parametrize("fault", ["nothing", *faults.FAULTS])
def test_every_request_is_answered_once(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "BEGIN", 4.0)
    monkeypatch.setattr(faults, "END", 8.0)
    simulation = Simulation(Setting(engines=3, fronts=2, delay=1.0, stored=True))
    faults.FAULTS[fault](simulation)
    outcome = simulation.run(SMALL)
    alone = [a for a in outcome.answers if a.moved is None]
    expected = Simulation(Setting(engines=3)).run(SMALL)
    assert len(alone) == sum(a.moved is None for a in expected.answers) > 50
    assert all(a.ttft >= 0 and a.cached < a.prompt for a in outcome.answers)
    for engine in simulation.engines.values():
        engine.check()
    for router in simulation.fronts:
        router.tree.check(router.engines.caches)
        assert all(engine.load == 0 for engine in router.engines)
        assert router.engines.waiting == 0


def test_equal_seeds_give_equal_runs() -> None:
    first, second = (Simulation(Setting(engines=4, seed=2)).run(SMALL) for _ in range(2))
    assert first.answers == second.answers


def test_the_cache_is_found_again_and_least_load_loses_it() -> None:
    hits = {
        word: Simulation(run_of(word, 4).setting).run(SMALL).due(4.0).hit_rate
        for word in ("predicted", "least-load")
    }
    assert hits["predicted"] > 1.3 * hits["least-load"]


def test_programs_stay_at_their_engine_without_a_key() -> None:
    outcome = Simulation(Setting(engines=4)).run(Agents(clients=24, seconds=20.0, seed=1))
    assert len(outcome.answers) > 100
    assert outcome.moved <= 0.05


def test_the_command_prints_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--tables", "scale,choice"]) == 0
    printed = capsys.readouterr().out
    assert "8 engines" in printed
    assert "1000 engines" in printed
