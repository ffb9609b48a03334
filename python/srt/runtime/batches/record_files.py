"""Record files: the records of files and batches in a directory, one JSON file for each.

A file belongs to the store if its name is an id. Other files in the directory are left alone. Files
of an id whose record cannot be read are left alone too.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

log = logging.getLogger("sglang.srt.runtime")


class StoredRecord(msgspec.Struct, kw_only=True):
    """A record; its file is named ``id``.json."""

    id: str


R = TypeVar("R", bound=StoredRecord)


def private(path: str, flags: int) -> int:
    """Opener for ``open``: only the owner can read new files."""
    return os.open(path, flags, 0o600)


def save(path: Path, record: StoredRecord) -> None:
    """Replace a record's file atomically. Raises OSError."""
    beside = path.with_suffix(".new")
    try:
        with open(beside, "wb", opener=private) as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise


class RecordFiles:
    """The files of a store.

    Attributes:
        unreadable: ids whose record cannot be read.
    """

    def __init__(self, directory: Path, ids: re.Pattern[str]) -> None:
        """Create the directory, readable only by this user. Raises OSError."""
        self.directory, self._ids = directory, ids
        self.unreadable: set[str] = set()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)  # an existing directory may have been readable by others

    def read(self, kind: type[R]) -> Iterator[R]:
        """Yield the records. A record that cannot be read is logged. Raises OSError."""
        for path in self._own("*.json"):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=kind)
                if record.id != path.stem:
                    raise msgspec.ValidationError(f"its id is {record.id!r:.60}")
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
                self.unreadable.add(path.stem)
                log.error(
                    "%s cannot be read (%s): it is not served, and its data stays on disk; "
                    "restore the file or remove all of that name", path, error,
                )  # fmt: skip
                continue
            yield record

    def clear(self, known: set[str]) -> None:
        """Remove remains of interrupted writes, and files of ids that are not ``known``. Raises
        OSError."""
        kept = known | self.unreadable
        for path in self._own("*"):
            if path.suffix in (".new", ".part") or path.stem not in kept:
                path.unlink()

    def _own(self, pattern: str) -> list[Path]:
        return [
            path
            for path in self.directory.glob(pattern)
            if self._ids.fullmatch(path.stem) and path.is_file() and not path.is_symlink()
        ]
