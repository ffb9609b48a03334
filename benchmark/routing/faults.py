"""Faults: what happens to a fleet at moment ``BEGIN`` of a run, until ``END``."""

from __future__ import annotations

from collections.abc import Callable

from benchmark.routing.simulation import Simulation

BEGIN, END, AFTER = 40.0, 60.0, 80.0  # seconds; figures are of 20 s before each
SLOW = 4.0  # times as long


def nothing(simulation: Simulation) -> None:
    """Do nothing."""


def engine_lost(simulation: Simulation) -> None:
    """Kill an engine; it comes back empty."""
    simulation.at(BEGIN, lambda: simulation.lose_engine("e0"))
    simulation.at(END, lambda: simulation.add_engine("e0"))


def engine_slow(simulation: Simulation) -> None:
    """Make all passes of an engine slower."""
    engine = simulation.engines["e0"]
    simulation.at(BEGIN, lambda: engine.slow_down(SLOW))
    simulation.at(END, lambda: engine.slow_down(1.0))


def partition(simulation: Simulation) -> None:
    """Cut the routers off from an engine, which goes on and keeps its cache."""
    simulation.at(BEGIN, lambda: simulation.cut_off("e0"))
    simulation.at(END, lambda: simulation.reach("e0"))


def elastic(simulation: Simulation) -> None:
    """Double the fleet, then drain the new engines."""
    names = [f"new{index}" for index in range(len(simulation.engines))]
    for name in names:
        simulation.at(BEGIN, lambda name=name: simulation.add_engine(name))  # type: ignore[misc]
        simulation.at(END, lambda name=name: simulation.drain(name))  # type: ignore[misc]


def router_restarted(simulation: Simulation) -> None:
    """Restart the first router: it knows nothing."""
    simulation.at(BEGIN, lambda: simulation.restart_router(0))


FAULTS: dict[str, Callable[[Simulation], None]] = {
    "nothing": nothing,
    "engine lost": engine_lost,
    "engine slow": engine_slow,
    "partition": partition,
    "elastic": elastic,
    "router restarted": router_restarted,
}
