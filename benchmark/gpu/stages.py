"""Stages: what is measured, in which order, for how long, and what is tried where a stage dies."""

from __future__ import annotations

from dataclasses import dataclass

# Ways to run a stage with the engine: settings of the worker by mode, the first that works.
MODES: dict[str, dict[str, object]] = {
    "graph": {},
    "eager": {"disable_cuda_graph": True},
    "triton": {"attention_backend": "triton"},
    "triton eager": {"attention_backend": "triton", "disable_cuda_graph": True},
    "native": {"attention_backend": "native", "disable_cuda_graph": True},
}
ONCE = ("",)
# Stages of many cases: a process that dies or hangs in one is followed by one for the rest.
RESUMED = ("", "rest", "rest again", "rest once more")


@dataclass(frozen=True)
class Stage:
    """A stage of the benchmark.

    Attributes:
        seconds: its share of 30 minutes; later stages get what it does not use.
        code: module and function in this package.
        title: heading in the report.
        modes: tried in order until one ends; keys of ``MODES``, ``RESUMED`` or ``ONCE``.
    """

    name: str
    seconds: float
    code: str
    title: str
    modes: tuple[str, ...] = ONCE


STAGES = {
    stage.name: stage
    for stage in (
        Stage("environment", 30, "ceilings:environment", "Environment"),
        Stage("ceilings", 40, "ceilings:ceilings", "Ceilings of the hardware"),
        Stage("checks", 480, "checks:checks", "Checks: test/gpu"),
        Stage("attention", 160, "attention:attention", "Attention of one layer", RESUMED),
        Stage("products", 90, "products:products", "Products of the models' shapes", RESUMED),
        Stage("layers", 60, "layers:layers", "Kernels between the products", RESUMED),
        Stage("sampling", 60, "sampling:sampling", "Sampling", RESUMED),
        Stage("experts", 60, "layers:experts", "Mixture of experts", RESUMED),
        Stage("passes", 400, "passes:passes", "Passes of whole models", tuple(MODES)),
        Stage("profile", 130, "profiles:profiles", "Time by kernel", tuple(MODES)),
        Stage("load", 250, "load:load", "The engine under load", tuple(MODES)),
    )
}
# Seconds kept for the report.
REPORT = 40
# Measured first wherever a stage has bounds, which are made of them.
CEILINGS = "ceilings"
BOUNDED = {"attention", "products", "layers", "sampling", "experts", "passes"}


def chosen(names: str) -> list[Stage]:
    """Stages by comma-separated names, in their own order. Raises ValueError for unknown names."""
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    if unknown := sorted(wanted - set(STAGES)):
        raise ValueError(f"--stages has {', '.join(unknown)}; there are {', '.join(STAGES)}")
    if not wanted:
        raise ValueError(f"--stages names none; there are {', '.join(STAGES)}")
    if wanted & BOUNDED:
        wanted.add(CEILINGS)
    return [stage for name, stage in STAGES.items() if name in wanted]
