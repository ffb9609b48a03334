"""Layout: which layers, and which share of them, each rank has.

Rank ``r`` is tensor-parallel rank ``r % tp`` of stage ``r // tp``; node ``n`` has the ranks from
``n * local`` on, ``local`` of them. The first rank of the last stage samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.config import ParallelConfig


@dataclass(frozen=True)
class RankLayout:
    """All ranks of a model. Sizes are those of ``ParallelConfig``."""

    tensor: int
    stages: int
    nodes: int = 1

    @classmethod
    def of(cls, config: ParallelConfig) -> RankLayout:
        return cls(config.tp_size, config.pp_size, config.nnodes)

    @property
    def ranks(self) -> int:
        return self.tensor * self.stages

    @property
    def local(self) -> int:
        """Ranks of each node."""
        return self.ranks // self.nodes

    @property
    def sampling(self) -> int:
        """The rank that samples."""
        return self.ranks - self.tensor

    @property
    def first(self) -> range:
        """The ranks of the first stage, which need sampled ids."""
        return range(self.tensor)

    def stage(self, rank: int) -> int:
        return rank // self.tensor

    def within(self, rank: int) -> int:
        """The rank's number among those of its stage."""
        return rank % self.tensor

    def stage_ranks(self, stage: int) -> range:
        return range(stage * self.tensor, (stage + 1) * self.tensor)

    def node_ranks(self, node: int) -> range:
        return range(node * self.local, (node + 1) * self.local)

    def node(self, rank: int) -> int:
        return rank // self.local


def stage_layers(layers: int, stages: int, counts: tuple[int, ...] = ()) -> list[range]:
    """The layers of each stage: ``counts`` of them, or as even as they can be, with one more for
    the first stages, since the last one has the output head. Raises ValueError."""
    if stages > layers:
        raise ValueError(
            f"--pp-size is {stages} and the model has {layers} layers; every stage needs one."
        )
    if not counts:
        each, more = divmod(layers, stages)
        counts = tuple(each + (stage < more) for stage in range(stages))
    if sum(counts) != layers:
        raise ValueError(
            f"--assigned-layers {','.join(map(str, counts))} names {sum(counts)} layers; the model "
            f"has {layers}."
        )
    ends = [sum(counts[: stage + 1]) for stage in range(stages)]
    return [range(end - count, end) for end, count in zip(ends, counts)]
