"""PageMap: which slots of a program's pages hold KV, as the program's calls say.

A slot is a page's handle times the page size, plus an offset. Nothing here waits for the engine:
it takes verbs in the program's order, so their effect is known when the call is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sglang.srt.core.ints import Ints, ints
from sglang.srt.inferlet.packed_numbers import unpacked

ITEM = 4  # bytes of a handle
FEW = 16  # pages, at least, by which a view is extended that is kept
MOST_VIEWS = 16  # views that are kept
MOST_SLOTS = 1 << 16  # slots of a view that is kept
PAGES = 1 << 18  # pages that a program may have, whatever the engine grants


class PageMap:
    """Pages of one program by handle.

    Attributes:
        size: tokens of a page.
        shown: bit mask of the slots that forwards see, by handle.
        hidden: bit mask of the slots that hold KV and are masked, by handle; 0 is left out.
        fixed: handles of read-only pages: exported, imported, or of the prefix cache.
        full: views of full pages, and their slots. A page that is full stays so until it is masked,
            freed or lost; then all views are dropped. The next view of a straight loop begins with
            the last one, so only what is behind that is looked up.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.shown: dict[int, int] = {}
        self.hidden: dict[int, int] = {}
        self.fixed: set[int] = set()
        self.full: dict[bytes, Ints] = {}

    def alloc(self, handles: Sequence[int]) -> None:
        """Add empty pages. Raises ValueError where a handle is in use or given twice."""
        if len(set(handles)) != len(handles):
            raise ValueError("pages has a handle twice; give each once")
        for handle in handles:
            if handle in self.shown:
                raise ValueError(f"page {handle} is in use; deallocate it first, or use another")
        if len(self.shown) + len(handles) > PAGES:
            raise ValueError(f"{len(self.shown) + len(handles)} pages are more than {PAGES}")
        self.shown.update(dict.fromkeys(handles, 0))

    def map(self, first: int, count: int) -> None:
        """Add full read-only pages under handles from ``first`` on."""
        handles = range(first, first + count)
        self.shown.update(dict.fromkeys(handles, (1 << self.size) - 1))
        self.fixed.update(handles)

    def free(self, handles: Iterable[int]) -> None:
        """Remove pages. Raises ValueError where one is unknown; then none is removed."""
        handles = list(handles)
        self.verify(handles)
        if len(set(handles)) != len(handles):
            raise ValueError("pages has a handle twice; give each once")
        self.full.clear()
        for handle in handles:
            del self.shown[handle]
            self.hidden.pop(handle, None)
            self.fixed.discard(handle)

    def fix(self, handles: Sequence[int]) -> None:
        """Make pages read-only."""
        self.verify(handles)
        self.fixed.update(handles)

    def verify(self, handles: Iterable[int]) -> None:
        """Raise ValueError where a handle is not of the program."""
        for handle in handles:
            if handle not in self.shown:
                raise ValueError(f"there is no page {handle}; alloc_kvpage makes one")

    def mask(self, page: int, mask: Sequence[bool]) -> None:
        """Hide the slots whose entry is false, show the others that hold KV."""
        self.verify((page,))
        if len(mask) != self.size:
            raise ValueError(f"mask has {len(mask)} entries; a page has {self.size} slots")
        held = self.shown[page] | self.hidden.get(page, 0)
        wanted = sum(1 << offset for offset, seen in enumerate(mask) if seen)
        self.full.clear()
        self.shown[page] = held & wanted
        self._hide(page, held & ~wanted)

    def visible(self, given: Sequence[int] | bytes) -> Ints:
        """Slots that a forward sees in these pages, in order. Raises ValueError."""
        data = given if isinstance(given, bytes) else unpacked(given).tobytes()
        if not data:
            return ints()
        known = next(filter(data.startswith, self.full), b"")
        if len(data) % ITEM:
            return unpacked(data)  # raises
        handles = unpacked(data[len(known) :])
        slots, full = self._shown(handles)
        if known:
            slots = self.full[known] + slots
        if full >= (FEW if known else 1) and len(slots) <= MOST_SLOTS:
            self.full.pop(known, None)
            if len(self.full) >= MOST_VIEWS:
                self.full.clear()
            count = len(known) // ITEM + full
            self.full[data[: ITEM * count]] = slots[: count * self.size]
        return slots

    def _shown(self, handles: Ints) -> tuple[Ints, int]:
        """Slots that a forward sees in pages, and how many of the first pages are full."""
        shown = self.shown.get
        if self.size == 1 and all(map(shown, handles)):
            return handles, len(handles)
        self.verify(handles)
        size, out, full = self.size, ints(), 0
        whole = (1 << size) - 1
        for index, handle in enumerate(handles):
            bits, base = self.shown[handle], handle * size
            if bits == whole:
                out.extend(range(base, base + size))
                full += full == index
            else:
                out.extend(base + offset for offset in range(size) if bits >> offset & 1)
        return out, full

    def take(self, handles: Ints, count: int) -> Ints:
        """Return slots for ``count`` tokens: in order, those of the pages without KV or with masked
        KV. Attention reads them from now on. Raise ValueError, and take none, where they are too
        few or a page is unknown or read-only."""
        self.verify(handles)
        if not self.fixed.isdisjoint(handles):
            [handle, *_] = self.fixed.intersection(handles)
            raise ValueError(f"page {handle} is read-only; copy_kvpage makes one of your own")
        if self.size == 1 and len(handles) == count and not any(map(self.shown.get, handles)):
            return self.write(handles)
        size, out = self.size, ints()
        for handle in handles:
            free = ~self.shown[handle]
            out.extend(handle * size + offset for offset in range(size) if free >> offset & 1)
            if len(out) >= count:
                break
        if len(out) < count:
            raise ValueError(
                f"okv has {len(out)} free slots and iemb has {count} tokens; allocate more pages"
            )
        return self.write(out[:count])

    def write(self, slots: Ints) -> Ints:
        """Slots hold KV from now on; the same slots. The pages are known to exist."""
        if self.size == 1 and not self.hidden:
            self.shown.update(dict.fromkeys(slots, 1))
            return slots
        for slot in slots:
            handle, offset = divmod(slot, self.size)
            self.shown[handle] |= 1 << offset
            if handle in self.hidden:
                self._hide(handle, self.hidden[handle] & ~(1 << offset))
        return slots

    def copy(self, sources: Ints, targets: Ints) -> None:
        """Slots are copied. Raises ValueError where a source holds no KV, or a target is fixed."""
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources and {len(targets)} targets; give as many")
        for slot in sources:
            handle, offset = divmod(slot, self.size)
            self.verify((handle,))
            if not (self.shown[handle] | self.hidden.get(handle, 0)) >> offset & 1:
                raise ValueError(f"slot {slot} holds no KV; a forward writes it first")
        for slot in targets:
            handle = slot // self.size
            self.verify((handle,))
            if handle in self.fixed:
                raise ValueError(f"page {handle} is read-only; copy to one of your own")
        self.write(targets)

    def slots(self, handles: Sequence[int]) -> Sequence[int]:
        """All slots of pages."""
        if self.size == 1:
            return handles
        return [handle * self.size + offset for handle in handles for offset in range(self.size)]

    def lose(self, handles: Iterable[int]) -> None:
        """Note that pages hold no KV any more, as after a pass that failed."""
        for handle in handles:
            if handle in self.shown:
                self.full.clear()
                self.shown[handle] = 0
                self.hidden.pop(handle, None)

    def _hide(self, page: int, bits: int) -> None:
        if bits:
            self.hidden[page] = bits
        else:
            self.hidden.pop(page, None)
