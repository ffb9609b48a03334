"""SpaceMemory: all spaces and exports, and the order in which they lose pages.

If pages are short, pages are freed in this order: leaves of the prefix cache are evicted, exports
that no space has imported are dropped, younger requests are retracted, and the newest spaces end
(Pie, section 5.2). Requests and spaces older than the one that needs pages are spared. If a space
cannot get enough pages in this way, the space itself ends.
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
MOST_EXPORTS = 4096  # most exports of one owner
ALL_EXPORTS = 4 * MOST_EXPORTS  # most exports of all owners


class OverCap(ValueError):
    """A program wants more pages than it may have."""


class SpaceOver(Exception):
    """The space was ended: memory is full, and all other holders of pages are older."""


class Export(NamedTuple):
    """Pages of an export. ``owner``: tenant of the space that exported them."""

    pages: Array
    owner: SpaceOwner


@dataclass(frozen=True)
class SpaceCaps:
    """Most pages of the pool for all spaces together, the spaces of one owner, and one space."""

    together: int
    owner: int
    space: int

    @classmethod
    def of(cls, pages: int) -> SpaceCaps:
        """Return caps: half of the pool for all spaces and for each, no cap for an owner."""
        return cls(pages // 2, pages, pages // 2)


class SpaceMemory:
    """Spaces by number, exports by namespace and name.

    Attributes:
        positions: positions of the tokens in the pool; kept only for windowed models.
        events: events to send.
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
        self._leased = 0  # number of handles mapped to pages of the prefix cache

    def owner(self, name: str) -> SpaceOwner:
        """Return the tenant named ``name``. Drop tenants without pages and spaces."""
        for known in [n for n, owner in self._owners.items() if not owner.pages and n != name]:
            if all(space.verb.owner != known for space in self.spaces.values()):
                del self._owners[known]
        return self._owners.setdefault(name, SpaceOwner())

    def map(
        self, space: ProgramSpace, handles: Array, pages: Array, writable: bool = False
    ) -> None:
        """Map free handles to pages. The caller must have added a holder to each page."""
        space.table.map(handles, pages, writable)
        space.owner.pages += len(handles)

    def lease(self, space: ProgramSpace, handles: Array, pages: Array, node: RadixNode) -> None:
        """Map free handles to the pages of a path of the prefix cache, which the caller has locked
        at ``node``. Raises OverCap, mapping none."""
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
        """Raise OverCap if ``count`` more pages would exceed the cap of the space or owner."""
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
        """Take ``count`` pages for a space. Raises OverCap, or SpaceOver after ending the space."""
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
        """Free pages until ``count`` more fit under the cap of all spaces. Return whether so."""
        self._forget_exports(lambda: self.used + count <= self.caps.together)
        return self._end_after(space.arrival, lambda: self.used + count <= self.caps.together)

    def _available_for(self, space: ProgramSpace, count: int) -> bool:
        """Free pages until ``count`` are available. Return whether so."""
        store = self.store
        if store.available >= count:
            return True
        self._forget_exports(lambda: store.available >= count)
        self.host.retract_after(space.arrival, count)
        return self._end_after(space.arrival, lambda: store.available >= count)

    def give_way(self, arrival: int, count: int) -> bool:
        """Free pages for an ordinary request that lacks ``count``: from exports that no space has
        imported, and younger spaces. Return whether more pages are available than before."""
        store, before = self.store, self.store.available
        self._forget_exports(lambda: store.available >= count)
        self._end_after(arrival, lambda: store.available >= count)
        return store.available > before

    @property
    def used(self) -> int:
        """Number of pages that spaces, exports and scratch hold. Pages of the prefix cache count
        once for each lease."""
        return self.pages.held + self._leased

    def _end_after(self, arrival: int, enough: Callable[[], bool]) -> bool:
        """End spaces younger than ``arrival``, the newest first, until ``enough()``. Return whether
        it is reached."""
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
        """Drop exports whose pages no space holds, the oldest first, until ``enough()``."""
        if enough() or not self.exports:
            return
        spaces = self.pages.holders().copy()  # less the exports below: holders other than exports
        for export in self.exports.values():
            spaces[export.pages] -= 1
        for key, export in list(self.exports.items()):
            if enough():
                return
            if not spaces[export.pages].any():
                self.release_export(key)

    # -- ends ------------------------------------------------------------------------------------

    def end(self, space: ProgramSpace, code: str, message: str) -> None:
        """Close a space and send its program a SpaceEnded event."""
        self.close(space)
        self.events.append(SpaceEnded(space.id, code, message))

    def close(self, space: ProgramSpace) -> None:
        """Free everything that a space holds. Passes in flight may still write its pages; their
        next owner writes them in a later pass."""
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
        """Return the pages of the prefix cache that a space's handles map to."""
        handles = [handle for lease in space.leases for handle in lease.handles]
        return space.table.pages(np.array(handles, dtype=np.int32))

    def free(self, space: ProgramSpace, handles: Array) -> None:
        """Unmap handles. Free their pages once no pending work may use them. Raises ValueError."""
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

        Pending work may still read the pages, so the path stays locked until it is planned.
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
        """Free pages and leases that no pending work of a space can use any more."""
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
        """Register an export. The caller has added a holder to its pages. Raises ValueError."""
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
        """Return an export by namespace and name. Raises ValueError if there is none."""
        if key not in self.exports:
            raise ValueError(
                f"there is no export {key[1]!r} in this namespace; list those there are"
            )
        return self.exports[key]

    def release_export(self, key: tuple[Namespace, str]) -> None:
        """Remove an export. Raises ValueError if there is none."""
        export = self.exported(key)
        self.pages.give(export.pages)
        export.owner.pages -= len(export.pages)
        export.owner.exports -= 1
        del self.exports[key]

    # -- audits ----------------------------------------------------------------------------------

    def check(self) -> set[int]:
        """Raise AssertionError if a page's number of holders does not match its actual holders.
        Return the pages that have a holder."""
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
