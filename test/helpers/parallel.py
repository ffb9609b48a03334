"""Views of tokens encoded side by side, by definition: a list of lists of indices."""

from __future__ import annotations

import random
from collections.abc import Sequence

from helpers.desk import Desk
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Open
from sglang.srt.core.segments import Segment, Segments

Item = list[int] | list[list[int]]  # a text, or texts side by side, as token ids


def tokens_of(items: Sequence[Item]) -> list[int]:
    """All tokens, one text after the other."""
    return [token for item in items for text in _texts(item) for token in text]


def views_of(items: Sequence[Item], drawn: int = 0) -> list[list[int]]:
    """Indices that each token sees, itself last, for all items and ``drawn`` more tokens. A token's
    position is the number of indices before it."""
    views: list[list[int]] = []
    for item in [*items, [0] * drawn]:
        before = list(range(len(views)))
        texts = _texts(item)
        for text in texts:
            own: list[int] = []
            for _ in text:
                seen = before if len(texts) > 1 else list(range(len(views)))
                own.append(len(views))
                views.append([*seen, *own] if len(texts) > 1 else [*seen, len(views)])
    return views


def segments_of(items: Sequence[Item]) -> Segments:
    """The same as segments, without the empty ones."""
    found: dict[int, int] = {}
    at = 0
    for item in items:
        base, texts = at, _texts(item)
        for text in texts:
            if len(texts) > 1:
                found[at] = base
            at += len(text)
        if len(texts) > 1:
            found[at] = at
    return tuple(Segment(start, sees) for start, sees in found.items() if start)


def some_text(r: random.Random, vocab: int) -> list[int]:
    """Few tokens, few different ones."""
    return [r.randrange(vocab) for _ in range(r.randint(1, 4))]


def grouped(r: random.Random, texts: Sequence[list[int]]) -> list[Item]:
    """The texts, some of them side by side; the last one follows all others."""
    items: list[Item] = []
    at, end = 0, len(texts) - 1
    while at < end:
        count = r.choice([1, 1, 2, 3, 4])
        some = list(texts[at : min(at + count, end)])
        items.append(some if len(some) > 1 else some[0])
        at += len(some)
    return [*items, texts[end]]


def _texts(item: Item) -> list[list[int]]:
    return item if item and isinstance(item[0], list) else [item]  # type: ignore[list-item]


class ParallelDesk(Desk):
    """A ``Desk`` that opens contexts of items."""

    def open_items(self, items: Sequence[Item], namespace: str = "") -> int:
        context = next(self._ids)
        tokens = ints(tokens_of(items)).tobytes()
        self.send(Open(context, tokens, namespace, segments_of(items)))
        return context
