"""PrefixFills: texts whose KV spaces have requested from the prefix cache (PrefixPages).

Missing KV is computed by a *fill*, an ordinary request of the engine. When the fill has ended, its
path is locked. The space gets the pages after the passes then in flight were collected, since they
may compute some of the path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from sglang.srt.core.ints import Ints
from sglang.srt.core.space_messages import SpaceFailed, SpaceReply
from sglang.srt.memory.radix_node import RadixNode
from sglang.srt.spaces.program_space import ProgramSpace
from sglang.srt.spaces.space_memory import OverCap, SpaceMemory
from sglang.srt.spaces.space_work import as_ints

Array: TypeAlias = np.ndarray[Any, Any]
MOST_FILLS = 16  # most texts of one space that are computed at the same time
TRIES = 3  # most fills of one text, if its KV is evicted before it can be locked


@dataclass(slots=True, eq=False)
class PrefixFill:
    """One text.

    Attributes:
        handles: handles that will be mapped to the text's pages.
        node: end of the locked path with ``pages``; None while the text is computed.
        sure: id of the last pass that may compute some of the path.
    """

    space: ProgramSpace
    request: int
    handles: Array
    tokens: Ints
    tries: int = 0
    node: RadixNode | None = None
    pages: Array | None = None
    sure: int = 0


class PrefixFills:
    """Fills by request id. The engine's own requests have negative ids."""

    def __init__(self, memory: SpaceMemory) -> None:
        self._memory = memory
        self._fills: dict[int, PrefixFill] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._fills)

    def begin(self, space: ProgramSpace, request: int, handles: Array, tokens: Array) -> None:
        """Begin a fill. Raises ValueError if the engine refuses the request or has no prefix cache,
        OverCap if the space has ``MOST_FILLS`` fills."""
        if not self._memory.store.share:
            raise ValueError("the prefix cache is off; start without --disable-radix-cache")
        if sum(fill.space is space for fill in self._fills.values()) >= MOST_FILLS:
            raise OverCap(
                f"{MOST_FILLS} texts of the program are being computed, as many as may be; await "
                "some first"
            )
        self._submit(PrefixFill(space, request, handles, as_ints(tokens)))

    def _submit(self, fill: PrefixFill) -> None:
        fill.tries += 1
        self._last -= 1
        space = fill.space
        self._memory.host.fill(self._last, fill.tokens, space.namespace, space.verb.priority)
        self._fills[self._last] = fill

    def ended(self, number: int, message: str, in_flight: int) -> None:
        """Lock the path of a fill whose request has ended. ``message``: reason of its failure; "":
        success. ``in_flight``: id of the last pass in flight; 0: none."""
        fill = self._fills.pop(number)
        space, memory = fill.space, self._memory
        if memory.spaces.get(space.id) is not space:
            return
        if message:
            self._fail(fill, message)
            return
        tree = memory.store.tree
        node, pages = tree.lock(fill.tokens, len(fill.tokens), space.namespace)
        if len(pages) < len(fill.handles):
            tree.unlock(node)
            self._again(fill)
            return
        fill.node, fill.pages, fill.sure = node, np.frombuffer(pages, dtype=np.int32), in_flight
        if in_flight:
            self._fills[number] = fill
        else:
            self._hand_over(fill, node)

    def _again(self, fill: PrefixFill) -> None:
        if fill.tries >= TRIES:
            self._fail(fill, "its KV was evicted as soon as it was computed; try again later")
            return
        try:
            self._submit(fill)
        except ValueError as error:  # the queue may be full by now
            self._fail(fill, str(error))

    def collected(self, number: int) -> None:
        """Map the paths to handles that passes up to ``number`` have computed."""
        for key, fill in list(self._fills.items()):
            if fill.node is not None and fill.sure <= number:
                del self._fills[key]
                self._hand_over(fill, fill.node)

    def _hand_over(self, fill: PrefixFill, node: RadixNode) -> None:
        memory, space = self._memory, fill.space
        assert fill.pages is not None
        if memory.spaces.get(space.id) is not space:
            memory.store.tree.unlock(node)
            return
        try:
            space.table.verify_free(fill.handles)
            memory.lease(space, fill.handles, fill.pages, node)
        except ValueError as error:
            memory.store.tree.unlock(node)
            self._fail(fill, str(error))
            return
        memory.events.append(SpaceReply(space.id, fill.request, len(fill.handles)))

    def failing(self) -> None:
        """Fail the fills whose paths failed passes should have computed, and unlock the paths."""
        for key, fill in list(self._fills.items()):
            if fill.node is not None:
                del self._fills[key]
                self._memory.store.tree.unlock(fill.node)
                self._fail(fill, "the forward pass failed; try again")

    def _fail(self, fill: PrefixFill, message: str) -> None:
        event = SpaceFailed(fill.space.id, fill.request, "internal", message)
        self._memory.events.append(event)

    def nodes(self) -> list[RadixNode]:
        """Return the end nodes of locked paths that are not mapped yet."""
        return [fill.node for fill in self._fills.values() if fill.node is not None]
