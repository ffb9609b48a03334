"""Store: the responses that may be retrieved again, in memory, within a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_COUNT = 10_000
OVERHEAD = 1000  # bytes of a record besides its texts


@dataclass(slots=True)
class StoredResponse:
    """One response, as it is answered.

    Attributes:
        tenant: its owner; no other tenant finds it.
        previous: id of the response that it continues, "" for none.
        items: its own input, a list of items in JSON. value: the object in JSON.
        events: the events emitted so far, framed; None where none are kept.
        live: its writer, as long as it is being written; until then it stays.
        size: bytes counted for it.
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
    """One tenant's records, the longest unused first."""

    records: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    size: int = 0


class ResponseStore:
    """Holds at most ``limit`` bytes and ``MAX_COUNT`` records.

    A new record may evict others: the tenant that holds most loses its least recently used. A
    record is never used less recently than one that continues it, so a conversation loses its end
    before its beginning.

    Attributes:
        size: bytes held.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = self._count = 0
        self._shelves: dict[str, _Shelf] = {}

    def __len__(self) -> int:
        return self._count

    def live(self, tenant: str | None = None) -> int:
        """Number of records that are being written, of one tenant or of all."""
        return sum(
            record.live is not None
            for name, shelf in self._shelves.items()
            if tenant in (None, name)
            for record in shelf.records.values()
        )

    def peek(self, tenant: str, id: str) -> StoredResponse | None:
        """The tenant's record with this id; counts as no use of it."""
        shelf = self._shelves.get(tenant)
        return None if shelf is None else shelf.records.get(id)

    def find(self, tenant: str, id: str) -> StoredResponse | None:
        """The same; it, and what it continues, is used."""
        record = self.peek(tenant, id)
        for each in self.chain(record):
            self._shelves[tenant].records.move_to_end(each.id)
        return record

    def chain(self, record: StoredResponse | None) -> Iterator[StoredResponse]:
        """The record and what it continues, the newest first, up to one that is not there."""
        while record is not None:
            yield record
            record = self.peek(record.tenant, record.previous)

    def put(self, record: StoredResponse) -> bool:
        """Store a new record; whether there is room for it."""
        self._shelves.setdefault(record.tenant, _Shelf()).records[record.id] = record
        self._count += 1
        self._grow(record, OVERHEAD + len(record.items) + len(record.value))
        self.find(record.tenant, record.id)
        return self._shrink(record)

    def add(self, record: StoredResponse, event: bytes) -> None:
        """Keep one more event of a live record; where there is no room for it, none of them."""
        if record.events is None or not self._holds(record):
            return
        record.events.append(event)
        self._grow(record, len(event))
        if not self._shrink(record):
            self._grow(record, -sum(map(len, record.events)))
            record.events = None

    def settle(self, record: StoredResponse, value: bytes) -> None:
        """A live record has its last value."""
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
        """Drop what is too much; whether ``record`` stayed and all is within bounds."""
        while self.size > self.limit or self._count > MAX_COUNT:
            shelves = sorted(self._shelves.values(), key=lambda shelf: shelf.size, reverse=True)
            rest = (each for shelf in shelves for each in shelf.records.values())
            oldest = next((each for each in rest if each.live is None), None)
            if oldest is None:
                return False
            self.drop(oldest)
        return self._holds(record)
