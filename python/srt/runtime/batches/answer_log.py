"""AnswerLog: the answers of a running batch, one on each line, in two files.

Each line is written once and completely. A partial line, left by a full disk or the end of the
process, is removed before the next line is written. The id of an answer contains the number of its
request. So a restarted server knows which requests are left.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 1 << 20  # bytes of one read
_BEGINNING = re.compile(rb'\{"id":"batch_req_[0-9a-f]+_([0-9]+)"')


class AnswerLog:
    """Two files of answers, ``output`` and ``errors``.

    Attributes:
        done: numbers of the requests that have an answer.
        completed, failed: number of answers in ``output`` and in ``errors``.
    """

    def __init__(self, output: Path, errors: Path) -> None:
        """Open the files, and read the answers that they have already. Raises OSError."""
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
        """Write the answer of a request, unless the request has one or the log is closed. May be
        called in any thread. If it raises OSError, no answer was written."""
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
        """Close the files. Raises OSError if the disk did not store all answers."""
        with self._lock:
            self._closed = True
            try:
                self._files[0].close()
            finally:
                self._files[1].close()


class _LineFile:
    """A file to which whole lines are appended."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end, self._torn = 0, True

    def recover(self) -> Iterator[int]:
        """Yield the request numbers of the answers. A partial last line will be cut off."""
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
        """Close the file without a truncation or sync."""
        handle, self._handle = self._handle, -1
        os.close(handle)
