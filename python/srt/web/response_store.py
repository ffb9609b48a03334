"""ResponseStore: the responses that can be retrieved later, in memory, bounded in size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_COUNT = 10_000
OVERHEAD = 1000  # bytes counted for a record in addition to its texts


@dataclass(slots=True)
class StoredResponse:
    """One stored response.

    Attributes:
        tenant: owner of the response; other tenants cannot find it.
        previous: id of the response that this one continues, "" for none.
        items: the response's own input, a list of items in JSON. value: the response in JSON.
        events: the framed events emitted so far; None if no events are kept.
        live: the BackgroundResponse while the response is generated; such a record is not evicted.
        size: bytes counted for the record.
    """

    id: str
    tenant: str
    previous: str
    items: bytes
    value: bytes = b""
    events: list[bytes] | None = None
    live: Any = None
    size: int = 0


@dataclass(slots=True)
class _Shelf:
    """One tenant's records, the least recently used first."""

    records: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    size: int = 0


class ResponseStore:
    """Store of at most ``limit`` bytes and ``MAX_COUNT`` records.

    A new record may evict others: the tenant with the most bytes loses its least recently used
    record. Using a record also uses the ones that it continues. So a conversation loses its end
    before its beginning.

    Attributes:
        size: bytes of all records.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = self._count = 0
        self._shelves: dict[str, _Shelf] = {}

    def __len__(self) -> int:
        return self._count

    def live(self, tenant: str | None = None) -> int:
        """Return the number of responses in progress, of one tenant or of all (None)."""
        return sum(
            record.live is not None
            for name, shelf in self._shelves.items()
            if tenant in (None, name)
            for record in shelf.records.values()
        )

    def peek(self, tenant: str, id: str) -> StoredResponse | None:
        """Return the tenant's record with this id, or None, without marking it as used."""
        shelf = self._shelves.get(tenant)
        return None if shelf is None else shelf.records.get(id)

    def find(self, tenant: str, id: str) -> StoredResponse | None:
        """Return the tenant's record with this id, or None. Mark the record, and those that it
        continues, as used."""
        record = self.peek(tenant, id)
        for each in self.chain(record):
            self._shelves[tenant].records.move_to_end(each.id)
        return record

    def chain(self, record: StoredResponse | None) -> Iterator[StoredResponse]:
        """Yield a record and those that it continues, the newest first, up to a missing one."""
        while record is not None:
            yield record
            record = self.peek(record.tenant, record.previous)

    def put(self, record: StoredResponse) -> bool:
        """Store a new record; return whether there is room for it."""
        self._shelves.setdefault(record.tenant, _Shelf()).records[record.id] = record
        self._count += 1
        self._grow(record, OVERHEAD + len(record.items) + len(record.value))
        self.find(record.tenant, record.id)
        return self._shrink(record)

    def add(self, record: StoredResponse, event: bytes) -> None:
        """Keep one more event of a live record. Without room, drop all events of the record."""
        if record.events is None or not self._holds(record):
            return
        record.events.append(event)
        self._grow(record, len(event))
        if not self._shrink(record):
            self._grow(record, -sum(map(len, record.events)))
            record.events = None

    def settle(self, record: StoredResponse, value: bytes) -> None:
        """Set the last value of a live record, which is finished now."""
        record.live = None
        if self._holds(record):
            self._grow(record, len(value) - len(record.value))
            record.value = value
            self._shrink(record)

    def drop(self, record: StoredResponse) -> None:
        if not self._holds(record):
            return
        shelf = self._shelves[record.tenant]
        del shelf.records[record.id]
        self._count -= 1
        self._grow(record, -record.size)
        if not shelf.records:
            del self._shelves[record.tenant]

    def _holds(self, record: StoredResponse) -> bool:
        return self.peek(record.tenant, record.id) is record

    def _grow(self, record: StoredResponse, count: int) -> None:
        record.size += count
        self._shelves[record.tenant].size += count
        self.size += count

    def _shrink(self, record: StoredResponse) -> bool:
        """Evict records until the limits hold. Return whether they hold and ``record`` is kept."""
        while self.size > self.limit or self._count > MAX_COUNT:
            shelves = sorted(self._shelves.values(), key=lambda shelf: shelf.size, reverse=True)
            rest = (each for shelf in shelves for each in shelf.records.values())
            oldest = next((each for each in rest if each.live is None), None)
            if oldest is None:
                return False
            self.drop(oldest)
        return self._holds(record)
