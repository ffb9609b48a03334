"""MetaTree: what engines are believed to hold, against a model that lists every block."""

from __future__ import annotations

from array import array

import pytest
from helpers.seeds import seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.routing.meta_tree import Holder, MetaTree, held_blocks
from sglang.srt.routing.prompt import FINE, PrefixPath

SPACES = (("", ""), ("tenant", ""))


def path(*hashes: int, space: tuple[str, str] = SPACES[0]) -> PrefixPath:
    return PrefixPath(space, array("I", hashes))


def held(tree: MetaTree, holder: Holder, prefix: PrefixPath) -> int:
    return held_blocks(tree.match(prefix), holder)[0]


paths = st.builds(
    lambda space, hashes: path(*hashes, space=space),
    st.sampled_from(SPACES),
    st.lists(st.integers(1, 3), min_size=1, max_size=8),
)
operations = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "insert", "lose", "forget", "extend", "retract"]),
        st.integers(0, 2),
        paths,
        st.integers(0, 8),
    ),
    max_size=40,
)


@settings(max_examples=len(seeds(100, 1000)), deadline=None)
@given(operations)
def test_a_large_tree_matches_a_list_of_blocks(history: list[tuple]) -> None:
    """An engine without limits holds the prefixes that were sent and not lost."""
    tree, holders = MetaTree(10_000), [Holder(1 << 30) for _ in range(3)]
    model: list[set] = [set() for _ in holders]
    for verb, number, prefix, count in history:
        holder, blocks = holders[number], model[number]
        key = prefix.space, tuple(prefix.hashes)
        if verb == "insert":
            tree.insert(prefix, holder)
            blocks |= {(key[0], key[1][:n]) for n in range(1, len(key[1]) + 1)}
        elif verb == "lose":
            tree.lose(prefix, holder, count)
            lost = {(key[0], key[1][:n]) for n in range(count + 1, len(key[1]) + 1)}
            blocks -= {b for b in blocks if any(b[1][: len(x[1])] == x[1] and b[0] == x[0]
                                                for x in lost)}  # fmt: skip
        elif verb == "forget":
            tree.forget(holder)
            blocks.clear()
        elif verb == "extend":
            tree.extend(prefix, holder, count)
        else:
            tree.retract(prefix, holder, count, use=-1)  # no use has this number
        tree.check(holders)
        for other, expected in zip(holders, model):
            found = max(n for n in range(len(key[1]) + 1)
                         if n == 0 or (key[0], key[1][:n]) in expected)  # fmt: skip
            assert held(tree, other, prefix) == found


@settings(max_examples=len(seeds(100, 1000)), deadline=None)
@given(operations, st.integers(1, 6), st.integers(1, 12))
def test_limits_hold_after_every_operation(history: list[tuple], nodes: int, room: int) -> None:
    tree, holders = MetaTree(nodes), [Holder(room * FINE + 7) for _ in range(3)]
    for verb, number, prefix, count in history:
        holder = holders[number]
        if verb == "insert":
            use = tree.insert(prefix, holder)
            if count == 0:
                tree.retract(prefix, holder, 1, use)
        elif verb == "lose":
            tree.lose(prefix, holder, count, before=count)
        elif verb == "forget":
            tree.forget(holder)
            assert holder.tokens == holder.count == 0
            assert all(holder not in node.holdings for node in tree.all_nodes())
        else:
            tree.extend(prefix, holder, count * 10)
        tree.check(holders)


def test_the_least_recently_used_end_goes_first() -> None:
    tree, holder = MetaTree(100), Holder(6 * FINE)
    tree.insert(path(1, 2, 3), holder)
    tree.insert(path(1, 7, 8), holder)
    tree.insert(path(1, 2), holder)
    tree.insert(path(4, 5), holder)  # 7 blocks; the end of 1 2 3 is the oldest
    assert held(tree, holder, path(1, 2, 3)) == 2
    assert held(tree, holder, path(1, 7, 8)) == 3
    tree.insert(path(6), holder)
    assert held(tree, holder, path(1, 7, 8)) == 2
    tree.check([holder])


def test_old_nodes_are_removed_before_young_ones() -> None:
    tree, holder = MetaTree(3), Holder(1 << 20)
    for first in range(1, 4):
        tree.insert(path(first, 9), holder)
    tree.insert(path(1, 9), holder)
    tree.insert(path(5), holder)
    assert [held(tree, holder, path(n, 9)) for n in (1, 2, 3)] == [2, 0, 2]


def test_a_split_keeps_partial_holdings() -> None:
    tree, whole, part = MetaTree(100), Holder(1 << 20), Holder(1 << 20)
    tree.insert(path(1, 2, 3, 4), whole)
    tree.insert(path(1, 2), part)
    tree.insert(path(1, 2, 3, 9), whole)
    assert held(tree, whole, path(1, 2, 3, 4)) == 4
    assert held(tree, part, path(1, 2, 3, 4)) == 2
    tree.check([whole, part])


def test_a_correction_drops_what_was_behind_the_lost_part() -> None:
    tree, holder = MetaTree(100), Holder(1 << 20)
    tree.insert(path(1, 2), holder)
    tree.insert(path(1, 2, 3), holder)
    use = tree.insert(path(1, 2, 4), holder)
    tree.insert(path(1, 2, 5), holder)
    tree.lose(path(1, 2, 4), holder, 0, before=use)
    assert [held(tree, holder, path(1, 2, n)) for n in (3, 4, 5)] == [2, 3, 3]
    tree.check([holder])


def test_a_retracted_path_is_held_no_more_unless_used_since() -> None:
    tree, holder = MetaTree(100), Holder(1 << 20)
    tree.insert(path(1, 2), holder)
    use = tree.insert(path(1, 2, 3, 4), holder)
    tree.retract(path(1, 2, 3, 4), holder, 2, use)
    assert held(tree, holder, path(1, 2, 3, 4)) == 2
    use = tree.insert(path(1, 2, 3, 4), holder)
    tree.insert(path(1, 2, 3, 4, 5), holder)
    tree.retract(path(1, 2, 3, 4), holder, 2, use)
    assert held(tree, holder, path(1, 2, 3, 4)) == 4


def test_generated_tokens_count_until_their_hashes_are_known() -> None:
    tree, holder = MetaTree(100), Holder(1 << 20)
    tree.insert(path(1, 2), holder)
    tree.extend(path(1, 2), holder, 100)
    assert held_blocks(tree.match(path(1, 2, 3)), holder) == (2, 100)
    assert holder.tokens == 2 * FINE + 100
    tree.insert(path(1, 2, 3, 4), holder)
    assert holder.tokens == 4 * FINE
    assert held_blocks(tree.match(path(1, 2, 9)), holder) == (2, 0)


def test_a_tree_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="most_nodes is 0; it must be at least 1"):
        MetaTree(0)
