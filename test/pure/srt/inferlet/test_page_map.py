"""PageMap: views are those of a plain list of slots, whatever the map keeps of earlier views."""

from __future__ import annotations

import random
from array import array
from collections import Counter

import pytest
from helpers.mutation import Mutation, caught, constant, drop, mutate
from sglang.srt.core.ints import Ints
from sglang.srt.inferlet.page_map import FEW, MOST_VIEWS, PageMap

SEEDS = range(60)
DROPPED = "self.full.clear()"


class PageHistory:
    """Random changes of a map, and views of it held against slots that are kept one by one."""

    def __init__(self, seed: int) -> None:
        self.r = r = random.Random(seed)
        self.size = r.choice([1, 1, 2, 4])
        self.map = PageMap(self.size)
        self.held: dict[int, list[bool]] = {}  # whether a slot has KV, by page
        self.shown: dict[int, list[bool]] = {}
        self.fixed: set[int] = set()
        self.views: list[list[int]] = []
        self.seen: Counter[str] = Counter()
        self.next = 0

    def run(self) -> Counter[str]:
        acts = [self._alloc, self._map, self._take, self._view, self._free, self._mask, self._copy,
                self._lose]  # fmt: skip
        for _ in range(80):
            self.r.choices(acts, [4, 1, 8, 12, 1, 2, 1, 0.5])[0]()
        return self.seen

    def _some(self, most: int) -> list[int]:
        known = sorted(self.held)
        return self.r.sample(known, min(len(known), self.r.randint(0, most)))

    def _alloc(self) -> None:
        pages = list(range(self.next, self.next + self.r.randint(1, 20)))
        self.next += len(pages)
        self.map.alloc(pages)
        for page in pages:
            self.held[page], self.shown[page] = [False] * self.size, [False] * self.size

    def _map(self) -> None:
        count = self.r.randint(1, 30)
        self.map.map(self.next, count)
        for page in range(self.next, self.next + count):
            self.held[page], self.shown[page] = [True] * self.size, [True] * self.size
            self.fixed.add(page)
        self.next += count

    def _take(self) -> None:
        """Write to the first free slots of some pages, most often the ones that came last."""
        pages = [page for page in sorted(self.held)[-12:] if page not in self.fixed]
        free = [(page, i) for page in pages for i in range(self.size) if not self.shown[page][i]]
        count = self.r.randint(0, len(free))
        if not count:
            return
        slots = self.map.take(array("i", pages), count)
        assert list(slots) == [page * self.size + i for page, i in free[:count]]
        for page, i in free[:count]:
            self.held[page][i] = self.shown[page][i] = True

    def _view(self) -> None:
        r = self.r
        if self.views and r.random() < 0.7:  # the step of a straight loop, or of one of its forks
            pages = [page for page in r.choice(self.views[-3:]) if page in self.held]
            pages += [page for page in sorted(self.held) if page not in pages][: r.randint(0, 24)]
            self.seen["continued"] += 1
        else:
            pages = r.choice([sorted(self.held), self._some(30)])
        self.views.append(pages)
        packed = array("i", pages)
        given = packed.tobytes() if r.random() < 0.8 else pages
        before = packed.tobytes().startswith(tuple(self.map.full) or b"-")
        found = self.map.visible(given)
        assert list(found) == [
            page * self.size + i for page in pages for i in range(self.size) if self.shown[page][i]
        ]
        self.seen["kept views used"] += before
        assert len(self.map.full) <= MOST_VIEWS

    def _free(self) -> None:
        pages = self._some(2)
        self.map.free(pages)
        for page in pages:
            del self.held[page], self.shown[page]
            self.fixed.discard(page)
        if pages and self.r.random() < 0.5:  # the same numbers, without KV
            self.map.alloc(pages)
            for page in pages:
                self.held[page], self.shown[page] = [False] * self.size, [False] * self.size
        for view in self.views:
            if self.r.random() < 0.5 and set(view) - set(self.held):
                assert self._refused(array("i", view).tobytes()), "a page that was freed is seen"

    def _refused(self, view: bytes) -> bool:
        try:
            self.map.visible(view)
        except ValueError as error:
            return "there is no page" in str(error)
        return False

    def _mask(self) -> None:
        for page in self._some(1):
            mask = [self.r.random() < 0.5 for _ in range(self.size)]
            self.map.mask(page, mask)
            self.shown[page] = [a and b for a, b in zip(self.held[page], mask)]

    def _copy(self) -> None:
        sources = [page * self.size + i for page, row in self.held.items()
                   for i, one in enumerate(row) if one]  # fmt: skip
        pages = [page for page in self.held if page not in self.fixed]
        if sources and pages:
            page, i = self.r.choice(pages), self.r.randrange(self.size)
            target = array("i", [page * self.size + i])
            self.map.copy(array("i", [self.r.choice(sources)]), target)
            self.held[page][i] = self.shown[page][i] = True

    def _lose(self) -> None:
        pages = self._some(2)
        self.map.lose(pages)
        for page in pages:
            self.held[page], self.shown[page] = [False] * self.size, [False] * self.size


def test_views_are_those_of_the_slots() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        seen += PageHistory(seed).run()
    assert seen["continued"] > 400
    assert seen["kept views used"] > 200


MUTATIONS = {
    "pages are freed": [Mutation(PageMap, "free", DROPPED, drop)],
    "slots are masked": [Mutation(PageMap, "mask", DROPPED, drop)],
    "pages are lost": [Mutation(PageMap, "lose", DROPPED, drop)],
    "a page before them is full in part": [
        Mutation(PageMap, "_shown", "full == index", constant(True)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_stale_view_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *MUTATIONS[name])
    assert caught(lambda seed: PageHistory(seed).run(), SEEDS), f"a view is stale once {name}"


@pytest.mark.parametrize("size", [1, 4])
def test_a_straight_loop_looks_few_pages_up(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    plain = PageMap._shown

    def shown(self: PageMap, handles: Ints) -> tuple[Ints, int]:
        looked.append(len(handles))
        return plain(self, handles)

    monkeypatch.setattr(PageMap, "_shown", shown)
    pages, count = PageMap(size), 200
    pages.alloc(range(count))
    for token in range(size * count):
        view = array("i", range(-(-token // size)))
        assert list(pages.visible(view.tobytes())) == list(range(token))
        pages.take(array("i", [token // size]), 1)
    assert max(looked) <= FEW + 1
    assert len(pages.full) == 1
