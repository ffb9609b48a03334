"""AnswerLog: the answers of a batch that is running, one a line, in two files.

A line is written once, whole: one that was cut, by a full disk or the end of the process, is cut
off before the next one. The number of a request is part of the id of its answer, so that a server
that is started again knows which requests are left.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 1 << 20  # bytes that are read at a time
_BEGINNING = re.compile(rb'\{"id":"batch_req_[0-9a-f]+_([0-9]+)"')


class AnswerLog:
    """Two files of answers, ``output`` and ``errors``.

    Attributes:
        done: numbers of the requests that have an answer.
        completed, failed: how many answers each file has.
    """

    def __init__(self, output: Path, errors: Path) -> None:
        """Open the files, or go on with those that are there. Raises OSError."""
        self.done: set[int] = set()
        self._lock, self._closed = threading.Lock(), False
        self._files = list[_LineFile]()
        try:
            for path in (output, errors):
                self._files.append(_LineFile(path))
            self.completed, self.failed = (self._recover(file) for file in self._files)
        except OSError:
            for file in self._files:
                file.drop()
            raise

    def _recover(self, file: _LineFile) -> int:
        before = len(self.done)
        self.done.update(file.recover())
        return len(self.done) - before

    def write(self, number: int, line: bytes, ok: bool) -> None:
        """Write the answer of a request, unless it has one, or the log was closed. May be called
        in any thread. Raises OSError, and nothing was written."""
        assert line.endswith(b"\n")
        with self._lock:
            if self._closed or number in self.done:
                return
            self._files[0 if ok else 1].append(line)
            self.done.add(number)
            if ok:
                self.completed += 1
            else:
                self.failed += 1

    def close(self) -> None:
        """Close the files. Raises OSError where the disk did not take all answers."""
        with self._lock:
            self._closed = True
            try:
                self._files[0].close()
            finally:
                self._files[1].close()


class _LineFile:
    """A file that only grows, by whole lines."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end, self._torn = 0, True

    def recover(self) -> Iterator[int]:
        """The numbers of the answers; what is behind the last whole line will be cut off."""
        rest, at = b"", 0
        while block := os.pread(self._handle, _BLOCK, at):
            at += len(block)
            *whole, rest = (rest + block).split(b"\n")
            for line in whole:
                if found := _BEGINNING.match(line):
                    yield int(found[1])
        self._end = at - len(rest)

    def append(self, line: bytes) -> None:
        if self._torn:
            os.ftruncate(self._handle, self._end)
        self._torn = True
        left, at = memoryview(line), self._end
        while left:
            count = os.pwrite(self._handle, left, at)
            left, at = left[count:], at + count
        self._end, self._torn = at, False

    def close(self) -> None:
        if self._handle < 0:
            return
        try:
            if self._torn:
                os.ftruncate(self._handle, self._end)
            os.fsync(self._handle)
        finally:
            self.drop()

    def drop(self) -> None:
        """Close the file as it is."""
        handle, self._handle = self._handle, -1
        os.close(handle)
