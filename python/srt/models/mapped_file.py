"""MappedFile: tensors of a checkpoint's files, whose pages come in when they are read."""

from __future__ import annotations

import mmap
from pathlib import Path


class MappedFile:
    """One file at a time; the last one's mapping lives on while something was read from it."""

    def __init__(self) -> None:
        self._open: tuple[Path, mmap.mmap] | None = None

    def of(self, path: Path) -> mmap.mmap:
        """The bytes of a file. Raises OSError."""
        if self._open is None or self._open[0] != path:
            with path.open("rb") as file:
                # Private: pages come in when read, and stay writable for torch's sake.
                self._open = path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._open[1]

    def forget(self, path: Path, begin: int, end: int) -> None:
        """Give back the pages of bytes [begin, end): they would count as this process's memory."""
        if self._open is not None and self._open[0] == path and end > begin:
            first = begin // mmap.PAGESIZE * mmap.PAGESIZE
            if hasattr(self._open[1], "madvise"):
                self._open[1].madvise(mmap.MADV_DONTNEED, first, end - first)
