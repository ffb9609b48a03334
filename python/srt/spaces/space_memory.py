"""SpaceMemory: all spaces and exports, and whose turn it is where pages are short.

Short of pages, in this order: leaves of the prefix cache are evicted, exports that no space has
imported are forgotten, younger requests are retracted, and the newest spaces end (Pie, section
5.2), but only those that are younger than what needs the pages. Where that is not enough, the space
that needs them is itself the newest, and ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from sglang.srt.core.ints import ints
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.space_messages import SpaceEnded, SpaceEvent
from sglang.srt.memory.radix_node import RadixNode
from sglang.srt.spaces.program_space import PrefixLease, ProgramSpace, SpaceOwner
from sglang.srt.spaces.slot_views import SlotPositions
from sglang.srt.spaces.space_host import SpaceHost
from sglang.srt.spaces.space_pages import SpacePages
from sglang.srt.spaces.space_work import CopyWork, ExportWork, ForwardWork

Array: TypeAlias = np.ndarray[Any, Any]
MOST_EXPORTS = 4096  # names of one owner
ALL_EXPORTS = 4 * MOST_EXPORTS  # of all together


class OverCap(ValueError):
    """A program wants more pages than it may have."""


class SpaceOver(Exception):
    """The space has ended: the memory is full, and all other holders of it are older."""


class Export(NamedTuple):
    """Pages under a name. ``owner``: of the space that exported them."""

    pages: Array
    owner: SpaceOwner


@dataclass(frozen=True)
class SpaceCaps:
    """Shares of the pool, in pages: of all spaces, of those of one owner, and of one."""

    together: int
    owner: int
    space: int

    @classmethod
    def of(cls, pages: int) -> SpaceCaps:
        """Half of the pool for all spaces, all of that for each, and no cap of an owner."""
        return cls(pages // 2, pages, pages // 2)


class SpaceMemory:
    """Spaces by number, exports by namespace and name.

    Attributes:
        positions: of the tokens in the pool, where the model has windows.
        events: to be sent.
    """

    def __init__(self, host: SpaceHost, caps: SpaceCaps, windowed: bool) -> None:
        self.store, self.host, self.caps = host.store, host, caps
        store = host.store
        self.positions = SlotPositions(store.pool.size * store.page_size, windowed)
        self.pages = SpacePages(store)
        self.spaces: dict[int, ProgramSpace] = {}
        self.exports: dict[tuple[Namespace, str], Export] = {}
        self.events: list[SpaceEvent] = []
        self._owners: dict[str, SpaceOwner] = {}
        self._leased = 0  # handles of the prefix cache's pages

    def owner(self, name: str) -> SpaceOwner:
        """Return the tenant of a name."""
        for known in [n for n, owner in self._owners.items() if not owner.pages and n != name]:
            if all(space.verb.owner != known for space in self.spaces.values()):
                del self._owners[known]
        return self._owners.setdefault(name, SpaceOwner())

    def map(
        self, space: ProgramSpace, handles: Array, pages: Array, writable: bool = False
    ) -> None:
        """Map handles that are free to pages, which the caller holds for them."""
        space.table.map(handles, pages, writable)
        space.owner.pages += len(handles)

    def lease(self, space: ProgramSpace, handles: Array, pages: Array, node: RadixNode) -> None:
        """Map handles that are free to the pages of a path of the prefix cache that the caller has
        locked. Raises OverCap, mapping none."""
        self.verify_cap(space, len(handles))
        if self.used + len(handles) > self.caps.together:
            raise OverCap(
                f"programs hold {self.used} pages and {self.caps.together} may be held by all; try "
                "again later"
            )
        slots = self.pages.lease(pages)
        self.positions.write(slots, np.arange(len(slots), dtype=np.int32))
        space.leases.append(PrefixLease(node, set(handles.tolist())))
        self._leased += len(handles)
        self.map(space, handles, pages)

    # -- caps and shortage -----------------------------------------------------------------------

    def verify_cap(self, space: ProgramSpace, count: int) -> None:
        """Raise OverCap where ``count`` pages more would be more than the space or its owner may
        have."""
        most = min(space.verb.most or self.caps.space, self.caps.space)
        if space.table.mapped + count > most:
            raise OverCap(
                f"{count} pages more would make {space.table.mapped + count} and the program may "
                f"have {most}; free some first"
            )
        used = space.owner.pages
        if used + count > self.caps.owner:
            raise OverCap(
                f"{count} pages more would make {used + count} and the programs of one tenant may "
                f"have {self.caps.owner} together; free some or release exports first"
            )

    def take(self, space: ProgramSpace, count: int) -> Array:
        """Take pages for a space. Raises OverCap, SpaceOver."""
        self.verify_cap(space, count)
        if not self._room_for(space, count) or not self._available_for(space, count):
            self.end(
                space, "overloaded",
                f"{count} pages were wanted and the memory is held by older requests and programs; "
                "try again later",
            )  # fmt: skip
            raise SpaceOver
        return self.pages.take(count)

    def _room_for(self, space: ProgramSpace, count: int) -> bool:
        """Make room within the cap of all spaces; return whether there is."""
        self._forget_exports(lambda: self.used + count <= self.caps.together)
        return self._end_after(space.arrival, lambda: self.used + count <= self.caps.together)

    def _available_for(self, space: ProgramSpace, count: int) -> bool:
        """Have pages to take; return whether there are."""
        store = self.store
        if store.available >= count:
            return True
        self._forget_exports(lambda: store.available >= count)
        self.host.retract_after(space.arrival, count)
        return self._end_after(space.arrival, lambda: store.available >= count)

    def give_way(self, arrival: int, count: int) -> bool:
        """Have pages for an ordinary request that lacks them, from exports without a space and from
        younger spaces. Return whether it has more than before."""
        store, before = self.store, self.store.available
        self._forget_exports(lambda: store.available >= count)
        self._end_after(arrival, lambda: store.available >= count)
        return store.available > before

    @property
    def used(self) -> int:
        """Pages that spaces, exports and scratch keep from others: pages of the prefix cache count
        once for each lease."""
        return self.pages.held + self._leased

    def _end_after(self, arrival: int, enough: Callable[[], bool]) -> bool:
        """End spaces that are younger than ``arrival``, the newest first, until there is enough.
        Return whether there is."""
        while not enough():
            younger = [space for space in self.spaces.values() if space.arrival > arrival]
            if not younger:
                return False
            self.end(
                max(younger, key=lambda space: space.arrival), "overloaded",
                "older requests and programs needed its pages; try again later",
            )  # fmt: skip
        return True

    def _forget_exports(self, enough: Callable[[], bool]) -> None:
        """Forget the oldest exports whose pages no space holds, until there is enough."""
        if enough() or not self.exports:
            return
        spaces = self.pages.holders().copy()  # holders that are no exports
        for export in self.exports.values():
            spaces[export.pages] -= 1
        for key, export in list(self.exports.items()):
            if enough():
                return
            if not spaces[export.pages].any():
                self.release_export(key)

    # -- ends ------------------------------------------------------------------------------------

    def end(self, space: ProgramSpace, code: str, message: str) -> None:
        """End a space and tell its program."""
        self.close(space)
        self.events.append(SpaceEnded(space.id, code, message))

    def close(self, space: ProgramSpace) -> None:
        """Give everything of a space back. Passes in flight may still write its pages: their next
        owner writes in a later pass."""
        del self.spaces[space.id]
        for lease in space.leases:
            self.store.tree.unlock(lease.node)
        leased = self.leased(space)
        pages = space.table.all_pages()
        self._leased -= len(leased)
        space.owner.pages -= len(pages)
        self.pages.give(pages[~np.isin(pages, leased)])
        for _, freed in space.later:
            self.pages.give(freed)
        for work in space.pending:
            if isinstance(work, ForwardWork):
                self.pages.give(work.scratch)
            elif isinstance(work, ExportWork):
                self.pages.give(work.pages)
        space.pending.clear()
        space.leases.clear()
        space.later.clear()
        space.forwards.clear()

    def leased(self, space: ProgramSpace) -> Array:
        """Return the pages of the prefix cache that a space's handles stand for."""
        handles = [handle for lease in space.leases for handle in lease.handles]
        return space.table.pages(np.array(handles, dtype=np.int32))

    def free(self, space: ProgramSpace, handles: Array) -> None:
        """Unmap handles. Pages go back once no pending work may use them. Raises ValueError."""
        pages = space.table.unmap(handles)
        space.owner.pages -= len(pages)
        if space.leases:
            leased = self._end_leases(space, handles)
            pages = pages[~np.isin(handles, leased)]
        if not len(pages):
            return
        if space.pending:
            space.later.append((space.pending[-1].number, pages))
        else:
            self.pages.give(pages)

    def _end_leases(self, space: ProgramSpace, handles: Array) -> list[int]:
        """Return those of the handles that were leased. A lease ends with its last handle.

        Pending work may still read the pages, so the path stays locked until that is planned.
        """
        found: list[int] = []
        freed = set(handles.tolist())
        for lease in list(space.leases):
            mine = lease.handles & freed
            found += mine
            lease.handles -= mine
            self._leased -= len(mine)
        self.settle(space)
        return found

    def settle(self, space: ProgramSpace) -> None:
        """Give back what no pending work of a space can use any more."""
        if space.later:
            oldest = space.pending[0].number if space.pending else None
            while space.later and (oldest is None or space.later[0][0] < oldest):
                self.pages.give(space.later.pop(0)[1])
        if space.leases and not space.pending:
            for lease in [lease for lease in space.leases if not lease.handles]:
                self.store.tree.unlock(lease.node)
                space.leases.remove(lease)

    # -- exports ---------------------------------------------------------------------------------

    def export(self, key: tuple[Namespace, str], pages: Array, owner: SpaceOwner) -> None:
        """Give pages, which the caller holds once more, a name. Raises ValueError."""
        if key in self.exports:
            raise ValueError(f"an export {key[1]!r} is there already; release it or take another")
        if owner.exports >= MOST_EXPORTS or len(self.exports) >= ALL_EXPORTS:
            raise OverCap(
                f"the programs of this tenant have {owner.exports} exports and all programs "
                f"{len(self.exports)}, of {MOST_EXPORTS} and {ALL_EXPORTS}; release some"
            )
        self.exports[key] = Export(pages, owner)
        owner.pages += len(pages)
        owner.exports += 1

    def exported(self, key: tuple[Namespace, str]) -> Export:
        """Return an export. Raises ValueError for a name without one."""
        if key not in self.exports:
            raise ValueError(
                f"there is no export {key[1]!r} in this namespace; list those there are"
            )
        return self.exports[key]

    def release_export(self, key: tuple[Namespace, str]) -> None:
        """Forget a name. Raises the errors of ``exported``."""
        export = self.exported(key)
        self.pages.give(export.pages)
        export.owner.pages -= len(export.pages)
        export.owner.exports -= 1
        del self.exports[key]

    # -- audits ----------------------------------------------------------------------------------

    def check(self) -> set[int]:
        """Raise AssertionError where a page has another number of holders than is known of. Return
        the pages that are held."""
        expected = np.zeros(self.store.pool.size, dtype=np.int32)

        def count(pages: Array) -> None:
            np.add.at(expected, pages, 1)

        for space in self.spaces.values():
            pages = space.table.all_pages()
            assert len(pages) == space.table.mapped, "a handle is not counted"
            count(pages[~np.isin(pages, self.leased(space))])
            for _, freed in space.later:
                count(freed)
            for work in space.pending:
                if isinstance(work, ForwardWork):
                    count(work.scratch)
                elif isinstance(work, ExportWork):
                    count(work.pages)
                else:
                    assert isinstance(work, CopyWork)
        for export in self.exports.values():
            count(export.pages)
        assert (expected == self.pages.holders()).all(), "a page of a space is lost or held twice"
        found = np.flatnonzero(expected)
        assert len(found) == self.pages.held, "pages of spaces are not counted"
        return set(ints(found))
