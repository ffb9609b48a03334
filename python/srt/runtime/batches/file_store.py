"""FileStore: the files of ``/v1/files``, on disk, each with its owner and its expiry.

    DIRECTORY/files/ID.json   record of a file; without its record a file does not exist
    DIRECTORY/files/ID.data   bytes of the file

Files contain prompts, so only the server's user can read them. The ``.json`` is written last; with
it a file is complete. Remains of interrupted uploads are removed when the store is opened.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from sglang.srt.requests.request_error import RequestError, shown
from sglang.srt.runtime.batches.record_files import RecordFiles, StoredRecord, private, save

MAX_FILES = 10_000  # files that one owner may have
MAX_FILENAME = 255  # characters
DAY = 86_400
LIFETIME = 30 * DAY  # default lifetime of a file, in seconds
_ID = re.compile(r"file-[0-9a-f]{32}")


class FileRecord(StoredRecord, kw_only=True):
    """One file. ``owner``: name of the API key that the file belongs to. Times are seconds since
    the epoch."""

    owner: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int

    def public(self) -> dict[str, Any]:
        """Return the file in OpenAI's format."""
        return {
            "id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.created_at,
            "expires_at": self.expires_at, "filename": self.filename, "purpose": self.purpose,
            "status": "processed", "status_details": None,
        }  # fmt: skip


def new_file_id() -> str:
    return f"file-{secrets.token_hex(16)}"


class FileStore:
    """Files below ``directory``.

    Files are read, listed and removed in one thread; ``add`` and ``take_in`` may run in others.

    Args:
        file_bytes: most bytes of one file. all_bytes: most bytes of all files.
        unfinished: ids of files that ``take_in`` may still add; their data are not removed.
        now: returns the seconds since the epoch.

    Attributes:
        size: bytes of all files, current uploads included.
        used: returns ids of files that are in use, which must not be deleted.
    """

    def __init__(
        self,
        directory: Path,
        file_bytes: int,
        all_bytes: int,
        unfinished: Collection[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        """Read the records of a directory, and remove unfinished files. Raises OSError."""
        self.file_bytes, self.all_bytes, self._now = file_bytes, all_bytes, now
        self.size, self.used, self._lock = 0, _unused, threading.Lock()
        self._first_end = 0.0  # lower bound of the moment at which the first file expires
        self._directory = directory / "files"
        found = RecordFiles(self._directory, _ID)
        self._records = {record.id: record for record in self._read(found)}
        found.clear({*self._records, *unfinished})
        self.sweep()

    def _read(self, found: RecordFiles) -> Iterator[FileRecord]:
        for record in found.read(FileRecord):
            with suppress(FileNotFoundError):
                self.size += os.stat(self.path(record.id)).st_size
                yield record

    def path(self, id: str) -> Path:
        """Return the path of a file's bytes. ``id``: an id of ``new_file_id``."""
        assert _ID.fullmatch(id)
        return self._directory / f"{id}.data"

    def find(self, id: str, owner: str) -> FileRecord:
        """Return the record of a file. Raises RequestError ``not_found``, also for a file of
        another owner."""
        self.sweep()
        record = self._records.get(id)
        if record is None or record.owner != owner:
            raise RequestError(f"There is no file {shown(id)}.", "id", "not_found")
        return record

    def of(self, owner: str) -> list[FileRecord]:
        """Return the owner's files, the newest first."""
        self.sweep()
        found = [record for record in list(self._records.values()) if record.owner == owner]
        return sorted(found, key=lambda record: (-record.created_at, record.id))

    def begin(self, owner: str) -> Upload:
        """Begin an upload. Raises RequestError if the owner has too many files, or the disk is
        full."""
        self.sweep()
        count = sum(record.owner == owner for record in list(self._records.values()))
        if count >= MAX_FILES:
            raise RequestError(
                f"{count} files are stored for this key; at most {MAX_FILES}. Delete some.",
                code="rate_limit_exceeded",
            )
        return Upload(self, owner)

    def reserve(self, count: int, size: int) -> None:
        """Count ``count`` more bytes of a file of ``size`` bytes. Raises RequestError."""
        with self._lock:
            self._reserve(count, size)

    def _reserve(self, count: int, size: int) -> None:
        if size + count > self.file_bytes:
            raise RequestError(
                f"The file has more than {self.file_bytes} bytes (--batch-max-file-bytes); cut it "
                "into several.",
                "file",
            )
        if self.size + count > self.all_bytes:
            raise RequestError(
                f"The files of this server have {self.size} bytes, and {self.all_bytes} are allowed"
                " (--batch-max-bytes); delete some, or try again later.",
                "file",
                "overloaded",
            )
        self.size += count

    def add(self, id: str, owner: str, filename: str, purpose: str, seconds: int) -> FileRecord:
        """Add the bytes at ``path(id)`` as a file that expires in ``seconds``. Raises OSError."""
        created = int(self._now())
        record = FileRecord(
            id=id, owner=owner, filename=filename, purpose=purpose,
            bytes=os.stat(self.path(id)).st_size, created_at=created, expires_at=created + seconds,
        )  # fmt: skip
        save(self._directory / f"{id}.json", record)
        with self._lock:
            self._records[id] = record
            self._first_end = min(self._first_end, record.expires_at)
        return record

    def take_in(self, working: Path, id: str, owner: str, name: str, seconds: int) -> None:
        """Move a finished file of answers into the store. May be repeated after an interruption.
        Raises OSError."""
        if id in self._records:
            return
        with suppress(FileNotFoundError):  # moved already
            os.replace(working, self.path(id))
        if not self.path(id).exists():  # deleted, or expired, before the server stopped
            return
        record = self.add(id, owner, name, "batch_output", seconds)
        self._count(record.bytes)

    def release(self, count: int) -> None:
        """Subtract ``count`` from the counted bytes."""
        self._count(-count)

    def _count(self, change: int) -> None:
        with self._lock:
            self.size += change

    def delete(self, record: FileRecord) -> None:
        """Delete a file. Raises RequestError ``conflict`` if a batch uses it."""
        if record.id in self.used():
            raise RequestError(
                f"{record.id} is the input of a batch that has not ended; cancel that batch first.",
                "id",
                "conflict",
            )
        self._remove(record)

    def sweep(self) -> None:
        """Remove expired files that are not in use."""
        now = self._now()
        if now < self._first_end:
            return
        used = self.used()
        for record in list(self._records.values()):
            if record.expires_at <= now and record.id not in used:
                self._remove(record)
        with self._lock:
            self._first_end = min((r.expires_at for r in self._records.values()), default=math.inf)

    def _remove(self, record: FileRecord) -> None:
        del self._records[record.id]
        self.release(record.bytes)
        for name in (f"{record.id}.json", f"{record.id}.data"):
            with suppress(OSError):
                (self._directory / name).unlink()


def _unused() -> Collection[str]:
    return ()


class Upload:
    """A file that is being uploaded. The caller ends it with ``finish`` or ``drop``."""

    def __init__(self, store: FileStore, owner: str) -> None:
        self._store, self._owner, self._id = store, owner, new_file_id()
        self.size, self.most = 0, store.file_bytes
        self._part = store.path(self._id).with_suffix(".part")
        self._file = None
        with DiskErrors():
            self._file = open(self._part, "xb", opener=private)  # noqa: SIM115 (closed by finish and drop)

    def write(self, data: bytes) -> None:
        """Append to the file. Raises RequestError if a limit is exceeded, or the disk is full."""
        assert self._file is not None
        self._store.reserve(len(data), self.size)
        self.size += len(data)
        with DiskErrors():
            self._file.write(data)

    def finish(self, filename: str, purpose: str, seconds: int) -> FileRecord:
        """Add the complete file to the store and return its record. Raises RequestError if the disk
        is full."""
        assert self._file is not None
        with DiskErrors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._part, self._store.path(self._id))
            record = self._store.add(self._id, self._owner, filename, purpose, seconds)
        self._file = None
        return record

    def drop(self) -> None:
        """Remove the uploaded bytes, unless the upload was finished."""
        if self._file is None:
            return
        with suppress(OSError):
            self._file.close()
        for path in (self._part, self._store.path(self._id)):
            path.unlink(missing_ok=True)
        self._store.release(self.size)
        self._file = None


class DiskErrors:
    """A block that turns OSErrors into RequestErrors ``overloaded``."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, OSError):
            raise RequestError(
                f"The server cannot write to its disk ({error.strerror}); try again later.",
                code="overloaded",
            ) from error
