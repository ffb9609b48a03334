"""BatchRecords: the batches of a server and their states, one JSON file for each batch.

validating -> in_progress -> finalizing -> completed
validating -> failed                        the input file has errors
in_progress -> expired                      time is over; the error file has the remaining requests
validating, in_progress -> cancelling -> cancelled
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from sglang.srt.requests import request_error
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.batches.batch_input import InputError
from sglang.srt.runtime.batches.file_store import LIFETIME
from sglang.srt.runtime.batches.record_files import RecordFiles, StoredRecord, save

_ID = re.compile(r"batch_[0-9a-f]{32}")
STATES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
ENDED = ("completed", "failed", "expired", "cancelled")


class Order(msgspec.Struct, kw_only=True):
    """Settings of a batch, as a client requested them. ``seconds``: time until the batch expires;
    ``output_seconds``: time until the files of its answers expire."""

    owner: str
    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    seconds: int = 86_400
    output_seconds: int = LIFETIME
    metadata: dict[str, str] | None = None


class BatchRecord(StoredRecord, kw_only=True):
    """One batch. ``moments``: seconds since the epoch at which each state began. ``answers``: ids
    of the files of answers and of errors, which exist once the batch has ended."""

    order: Order
    answers: tuple[str, str]
    status: str = "validating"
    moments: dict[str, int] = msgspec.field(default_factory=dict)
    total: int = 0
    completed: int = 0
    failed: int = 0
    ends_as: str = ""
    errors: list[InputError] = msgspec.field(default_factory=list)

    @property
    def kept(self) -> tuple[bool, bool]:
        """Whether the batch has answers, and whether it has errors."""
        return self.completed > 0, self.failed > 0

    @property
    def created_at(self) -> int:
        return self.moments["validating"]

    @property
    def expires_at(self) -> int:
        return self.created_at + self.order.seconds

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def enter(self, status: str, now: float) -> None:
        """Enter a state at the moment ``now``."""
        self.status = status
        self.moments[status] = int(now)

    def public(self) -> dict[str, Any]:
        """Return the batch in OpenAI's format."""
        errors = {"object": "list", "data": msgspec.to_builtins(self.errors)}
        shown = [id if kept and self.ended else None for id, kept in zip(self.answers, self.kept)]
        return {
            "id": self.id, "object": "batch", "endpoint": self.order.endpoint,
            "errors": errors if self.errors else None,
            "input_file_id": self.order.input_file_id,
            "completion_window": self.order.completion_window,
            "status": self.status, "output_file_id": shown[0], "error_file_id": shown[1],
            "created_at": self.created_at, "expires_at": self.expires_at,
            **{f"{name}_at": self.moments.get(name) for name in STATES},
            "request_counts": {
                "total": self.total, "completed": self.completed, "failed": self.failed,
            },
            "metadata": self.order.metadata,
        }  # fmt: skip


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(16)}"


class BatchRecords:
    """Records below ``directory``. The record of an ended batch is removed when its answers
    expire."""

    def __init__(self, directory: Path) -> None:
        """Read the records of a directory. Raises OSError."""
        self._directory = directory / "batches"
        found = RecordFiles(self._directory, _ID)
        self._records = {record.id: record for record in found.read(BatchRecord)}
        found.clear(set(self._records))

    def __iter__(self) -> Iterator[BatchRecord]:
        return iter(list(self._records.values()))

    def path(self, id: str, suffix: str) -> Path:
        """Return the path of a working file of a batch."""
        assert _ID.fullmatch(id)
        return self._directory / f"{id}.{suffix}"

    def find(self, id: str, owner: str) -> BatchRecord:
        """Return the record of a batch. Raises RequestError ``not_found``, also for a batch of
        another owner."""
        record = self._records.get(id)
        if record is None or record.order.owner != owner:
            raise RequestError(f"There is no batch {request_error.shown(id)}.", "id", "not_found")
        return record

    def of(self, owner: str) -> list[BatchRecord]:
        """Return the owner's batches, the newest first."""
        found = [record for record in self if record.order.owner == owner]
        return sorted(found, key=lambda record: (-record.created_at, record.id))

    def save(self, record: BatchRecord) -> None:
        """Write a record to disk, then keep it. Raises OSError."""
        self.write(record)
        self._records[record.id] = record

    def write(self, record: BatchRecord) -> None:
        """Write a record to disk only. Raises OSError."""
        save(self.path(record.id, "json"), record)

    def sweep(self, now: float) -> None:
        """Forget batches that ended and whose answers have expired."""
        for record in self:
            ended = record.moments.get(record.status, 0)
            if record.ended and ended + record.order.output_seconds <= now:
                del self._records[record.id]
                with suppress(OSError):
                    self.path(record.id, "json").unlink()
