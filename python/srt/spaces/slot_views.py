"""Views: checks that attention can read a list of slots, with large pages and sliding windows."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from sglang.srt.spaces.space_work import ForwardWork

Array: TypeAlias = np.ndarray[Any, Any]


def verify_pages(page_size: int, visible: int, work: ForwardWork | None = None) -> None:
    """Raise ValueError if pages hold several tokens and the slots of ``work`` do not fill their
    pages in order. ``visible``: number of slots before KV that is not kept."""
    if page_size == 1:
        return
    text = f"pages have {page_size} tokens; start the server with --page-size 1 for "
    if visible % page_size:
        raise ValueError(f"{text}KV that is kept nowhere behind a part of a page")
    if work is None:
        return
    if work.hides:
        raise ValueError(f"{text}masks")
    slots = work.slots
    first = np.repeat(slots[::page_size], page_size)[: len(slots)]
    if (slots != first + np.arange(len(slots)) % page_size).any() or (first % page_size).any():
        raise ValueError(f"{text}slots that do not fill their pages in order")


class SlotPositions:
    """Positions of the tokens in the pool's slots, kept for models with sliding windows.

    A windowed layer measures the distance of two tokens in slots of the view. So the positions of
    the tokens in a view must be consecutive.
    """

    def __init__(self, slots: int, windowed: bool) -> None:
        self._positions = np.full(slots if windowed else 0, -1, dtype=np.int32)

    @property
    def kept(self) -> bool:
        """Whether positions are kept: the model has sliding windows."""
        return len(self._positions) > 0

    def write(self, slots: Array, positions: Array) -> None:
        """Note the positions of tokens whose KV is written to slots."""
        if self.kept:
            self._positions[slots] = positions

    def copy(self, sources: Array, targets: Array) -> None:
        """Note that tokens' KV is copied from slots to slots."""
        if self.kept:
            self._positions[targets] = self._positions[sources]

    def verify(self, work: ForwardWork, positions: Array) -> None:
        """Raise ValueError if the positions that the work sees are not consecutive."""
        if work.hides:
            raise ValueError("the model has layers with a sliding window, which no mask can have")
        own = np.concatenate([self._positions[work.reads], positions])
        if (np.diff(own) != 1).any():
            at = int(np.flatnonzero(np.diff(own) != 1)[0])
            raise ValueError(
                "the model has layers with a sliding window, which counts the tokens between two; "
                f"the view has a hole between positions {own[at]} and {own[at + 1]}: show every "
                "token between the first and the last"
            )
