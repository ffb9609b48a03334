"""BlockPages: the list of pages is that of the dictionary, whatever changed since the last one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers.mutation import Mutation, become, caught, drop, mutate
from sglang.inferlet.block_pages import BlockPages

SEEDS = range(40)
DROPPED = "self._listed = None"


def history(seed: int) -> None:
    """Random changes; after some of them all pages are listed."""
    r = random.Random(seed)
    blocks, plain, pages = BlockPages(), dict[int, int](), iter(range(1000))
    for _ in range(60):
        known = r.choice(list(plain) or [0])
        match r.choice(
            ["add", "add", "add", "replace", "remove", "pop", "update", "clear", "copy"]
        ):
            case "add":
                page = next(pages)
                block = max(plain, default=-1) + 1
                blocks[block] = plain[block] = page
            case "replace" if plain:
                blocks[known] = plain[known] = next(pages)
            case "remove" if plain:
                del blocks[known], plain[known]
            case "pop" if plain:
                assert blocks.pop(known) == plain.pop(known)
            case "update":
                more = dict(zip(range(known, known + 3), pages))
                blocks.update(more)
                plain.update(more)
            case "clear" if r.random() < 0.2:
                blocks.clear()
                plain.clear()
            case "copy":
                blocks = BlockPages(blocks)
        if r.random() < 0.7:
            listed = blocks.listed()
            assert list(listed) == list(plain.values())
            listed.append(-1)  # the caller's own
        assert blocks == plain


@pytest.mark.parametrize("seed", SEEDS)
def test_pages_are_listed_in_order(seed: int) -> None:
    history(seed)


MUTATIONS = {
    "a page is replaced": [Mutation(BlockPages, "__setitem__", DROPPED, drop)],
    "a block is removed": [Mutation(BlockPages, "__delitem__", DROPPED, drop)],
    "a block is popped": [Mutation(BlockPages, "pop", DROPPED, drop)],
    "pages are updated": [Mutation(BlockPages, "update", DROPPED, drop)],
    "all is cleared": [Mutation(BlockPages, "clear", DROPPED, drop)],
    "the caller has added one": [Mutation(BlockPages, "listed", "self._listed[:]",
                                          become("self._listed"))],
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_stale_list_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *MUTATIONS[name])
    assert caught(lambda seed: history(seed), SEEDS), f"the list may be stale once {name}"


def test_a_straight_loop_lists_pages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = 0
    plain = BlockPages.values

    def values(self: BlockPages) -> Any:
        nonlocal built
        built += 1
        return plain(self)

    monkeypatch.setattr(BlockPages, "values", values)
    blocks = BlockPages({0: 5})
    for block in range(1, 50):
        assert len(blocks.listed()) == block
        blocks[block] = block
    assert built == 1
