"""Placement: resources that an engine needs on one machine, and what a cluster lacks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Resources = Mapping[str, float]


class EngineResources(NamedTuple):
    """Resources of each rank of an engine. All ranks are on one machine."""

    ranks: int = 1
    cpus: float = 1.0
    gpus: float = 0.0

    @property
    def bundle(self) -> dict[str, float]:
        """Resources of the whole engine, by Ray's names. One bundle is never split over machines,
        which is what STRICT_PACK says of several."""
        found = {"CPU": self.ranks * self.cpus, "GPU": self.ranks * self.gpus}
        return {name: amount for name, amount in found.items() if amount}


def missing(bundle: Resources, machines: Sequence[Resources], free: Resources) -> str:
    """Return the reason that a bundle has no machine.

    Args:
        machines: all resources of each machine.
        free: resources of the cluster that no other actor or task has.
    """
    lacking = []
    for name, amount in bundle.items():
        most = max((machine.get(name, 0.0) for machine in machines), default=0.0)
        if most < amount:
            lacking.append(f"{name}: {amount:g} on one machine, and the largest has {most:g}")
    if lacking:
        return "; ".join(lacking)
    if not any(
        all(machine.get(name, 0.0) >= amount for name, amount in bundle.items())
        for machine in machines
    ):
        return f"no machine has all of {_listed(bundle)}"
    return f"{_listed(bundle)} on one machine; of the cluster {_listed(free, bundle)} are free now"


def _listed(resources: Resources, names: Resources | None = None) -> str:
    names = resources if names is None else names
    return ", ".join(f"{name} {resources.get(name, 0.0):g}" for name in names) or "nothing"
