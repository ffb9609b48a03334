"""Layout: assignment of layers, and of shares of each layer, to ranks.

Rank ``r`` is tensor-parallel rank ``r % tp`` of stage ``r // tp``. Node ``n`` has ``local`` ranks,
from ``n * local`` on. The first rank of the last stage samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.config import ParallelConfig


@dataclass(frozen=True)
class RankLayout:
    """Numbers of tensor-parallel ranks per stage, of stages, and of nodes (``ParallelConfig``)."""

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
        """Number of ranks per node."""
        return self.ranks // self.nodes

    @property
    def sampling(self) -> int:
        """The rank that samples."""
        return self.ranks - self.tensor

    @property
    def first(self) -> range:
        """The ranks of the first stage, which embed sampled tokens."""
        return range(self.tensor)

    def stage(self, rank: int) -> int:
        return rank // self.tensor

    def within(self, rank: int) -> int:
        """Return the tensor-parallel rank: the index of ``rank`` among the ranks of its stage."""
        return rank % self.tensor

    def stage_ranks(self, stage: int) -> range:
        return range(stage * self.tensor, (stage + 1) * self.tensor)

    def node_ranks(self, node: int) -> range:
        return range(node * self.local, (node + 1) * self.local)

    def node(self, rank: int) -> int:
        return rank // self.local


def stage_layers(layers: int, stages: int, counts: tuple[int, ...] = ()) -> list[range]:
    """Return the layers of each stage: ``counts`` layers, or an even split. Leftover layers go to
    the first stages, because the last stage has the output head. Raises ValueError."""
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
