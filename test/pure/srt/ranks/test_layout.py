"""Layouts: the layers of each rank, and its share of them."""

from __future__ import annotations

import pytest
from sglang.srt.ranks.layout import RankLayout, stage_layers


@pytest.mark.parametrize("layers", range(1, 13))
def test_stages_have_all_layers_once(layers: int) -> None:
    for stages in range(1, layers + 1):
        found = stage_layers(layers, stages)
        assert [n for stage in found for n in stage] == list(range(layers))
        sizes = [len(stage) for stage in found]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


def test_stages_have_the_layers_that_are_assigned() -> None:
    assert stage_layers(16, 2, (9, 7)) == [range(0, 9), range(9, 16)]


@pytest.mark.parametrize(
    ("layers", "stages", "counts", "message"),
    [
        (3, 4, (), "--pp-size is 4 and the model has 3 layers"),
        (16, 2, (9, 8), "--assigned-layers 9,8 names 17 layers; the model has 16"),
    ],
)
def test_layers_that_do_not_fit(
    layers: int, stages: int, counts: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        stage_layers(layers, stages, counts)


@pytest.mark.parametrize(
    ("tensor", "stages", "nodes"), [(1, 4, 2), (2, 2, 4), (4, 1, 2), (2, 3, 1)]
)
def test_each_rank_has_one_position(tensor: int, stages: int, nodes: int) -> None:
    layout = RankLayout(tensor, stages, nodes)
    positions = {(layout.stage(r), layout.within(r)) for r in range(layout.ranks)}
    assert positions == {(s, t) for s in range(stages) for t in range(tensor)}
    by_stage = [r for stage in range(stages) for r in layout.stage_ranks(stage)]
    by_node = [r for node in range(nodes) for r in layout.node_ranks(node)]
    assert by_stage == by_node == list(range(layout.ranks))
    assert all(r in layout.node_ranks(layout.node(r)) for r in range(layout.ranks))
    assert (layout.stage(layout.sampling), layout.within(layout.sampling)) == (stages - 1, 0)
