"""SlotFile: slots of KV in a file, and an index of them in another, that outlive a server.

    kv.data     slot after slot
    kv.index    a header, then a record a slot

The header names the model and everything else that KV depends on (``worker/kv_fingerprint``): files
of another model are emptied. A record has the slot's key, and a checksum of its bytes and of its
digest. It is erased before the slot is written and written after it: at whatever moment a server is
killed, a slot is there with its own record or not at all. After a loss of power, which may undo any
of these writes, the checksums tell.

One server at a time has the directory, by a lock on the index. Both files are the user's alone.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from sglang.srt.core.disk_jobs import DIGEST_BYTES, SlotKey, SlotRecord
from sglang.srt.core.ints import from_bytes

log = logging.getLogger("sglang.srt.worker")
MAGIC = b"sglangKV"
VERSION = 1
HEADER = struct.Struct("<8sIIQ32s")  # magic, version, tokens a slot, bytes a slot, fingerprint
HEADER_BYTES = 4096
# Serial number (0: no slot), digest, digest before, first, checksum of the slot.
RECORD = struct.Struct(f"<Q{DIGEST_BYTES}s{DIGEST_BYTES}sII")
SUM = struct.Struct("<I")  # checksum of the record
RUN_BYTES = 1 << 22  # neighbouring slots of so many bytes are copied at once


class SlotFile:
    """The two files, open and locked.

    Args:
        directory: of the files.
        fingerprint: of all that KV depends on, 32 bytes; ``what``: the same in words.
        slots: how many there are to be.
        slot_bytes, slot_tokens: of one.

    Raises ValueError where the directory cannot be used.
    """

    def __init__(
        self, directory: Path, fingerprint: bytes, slots: int, slot_bytes: int, slot_tokens: int
    ) -> None:
        self.slots, self.slot_bytes, self.slot_tokens = slots, slot_bytes, slot_tokens
        self._record_bytes = RECORD.size + 4 * slot_tokens + SUM.size
        self._header = HEADER.pack(MAGIC, VERSION, slot_tokens, slot_bytes, fingerprint)
        self._sums: dict[int, tuple[bytes, int]] = {}  # digest and checksum by slot
        self._serial = 0
        self._index = _locked(directory / "kv.index")
        try:
            self._data = _opened(directory / "kv.data")
            try:
                self._prepare(directory)
            except BaseException:
                os.close(self._data)
                raise
        except BaseException:
            os.close(self._index)
            raise

    def _prepare(self, directory: Path) -> None:
        """Empty files of another model; give them their size. Raises ValueError."""
        held = os.pread(self._index, len(self._header), 0)
        if held != self._header:
            if held:
                log.warning(
                    "the KV in %s belongs to another model, or to other settings that KV depends "
                    "on; it is deleted to make room for this model's", directory,
                )  # fmt: skip
            os.ftruncate(self._index, 0)
            os.ftruncate(self._data, 0)
            os.pwrite(self._index, self._header, 0)
        size = self.slots * self.slot_bytes
        free = shutil.disk_usage(directory).free + 512 * os.fstat(self._data).st_blocks
        if size > free:
            raise ValueError(
                f"--hicache-storage-size needs {size / 1e9:.2f} GB in {directory} and "
                f"{free / 1e9:.2f} GB are free; lower it."
            )
        os.ftruncate(self._data, size)
        os.ftruncate(self._index, HEADER_BYTES + self.slots * self._record_bytes)

    def records(self) -> list[SlotRecord]:
        """Read the index. Records that are damaged are left out."""
        found, size = [], self._record_bytes
        data = os.pread(self._index, self.slots * size, HEADER_BYTES)
        for slot in range(len(data) // size):
            part = data[slot * size : (slot + 1) * size]
            serial, digest, before, first, checksum = RECORD.unpack_from(part)
            if not serial or SUM.unpack_from(part, size - SUM.size)[0] != zlib.crc32(
                part[: -SUM.size]
            ):
                continue
            tokens = from_bytes(part[RECORD.size : -SUM.size])
            found.append(SlotRecord(slot, serial, SlotKey(digest, before, bool(first), tokens)))
            self._sums[slot] = (digest, checksum)
            self._serial = max(self._serial, serial)
        return found

    def write(self, slots: Sequence[int], keys: Sequence[SlotKey], data: memoryview) -> None:
        """Write slots that follow each other. Raises OSError."""
        if os.fstat(self._data).st_nlink == 0:
            raise OSError(errno.ESTALE, "kv.data was deleted")
        start, size, step = slots[0], self._record_bytes, self.slot_bytes
        self._erase(start, len(slots))
        _write(self._data, data, start * step)
        records, sums = [], {}
        for number, (slot, key) in enumerate(zip(slots, keys)):
            self._serial += 1
            checksum = zlib.crc32(data[number * step : (number + 1) * step], zlib.crc32(key.digest))
            head = RECORD.pack(self._serial, key.digest, key.before, key.first, checksum)
            record = head + key.tokens.tobytes()
            records.append(record + SUM.pack(zlib.crc32(record)))
            sums[slot] = (key.digest, checksum)
        _write(self._index, b"".join(records), HEADER_BYTES + start * size)
        self._sums.update(sums)

    def read(self, slots: Sequence[int], digests: Sequence[bytes], into: memoryview) -> int:
        """Read slots that follow each other. Return how many are right, from the first on. The
        record of one that is wrong is erased, so that no later start finds it. Raises OSError."""
        step, done = self.slot_bytes, 0
        got = _read(self._data, into[: len(slots) * step], slots[0] * step)
        for slot, digest in zip(slots, digests):
            part = into[done * step : (done + 1) * step]
            held = self._sums.get(slot)
            whole = (done + 1) * step <= got
            if not whole or held != (digest, zlib.crc32(part, zlib.crc32(digest))):
                self._erase(slot, 1)
                break
            done += 1
        return done

    def _erase(self, start: int, count: int) -> None:
        """Erase the records of slots that follow each other, where there are any."""
        if [slot for slot in range(start, start + count) if self._sums.pop(slot, None)]:
            size = self._record_bytes
            _write(self._index, bytes(count * size), HEADER_BYTES + start * size)

    def clear(self) -> None:
        """Forget all slots. Raises OSError."""
        self._sums.clear()
        os.ftruncate(self._index, HEADER_BYTES)
        os.ftruncate(self._index, HEADER_BYTES + self.slots * self._record_bytes)

    def close(self) -> None:
        """Close the files, which gives the lock back."""
        os.close(self._data)
        os.close(self._index)


def runs(slots: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return (first index, end) of runs of at most ``most`` slots that follow each other."""
    found, start = [], 0
    for end in range(1, len(slots) + 1):
        apart = end == len(slots) or slots[end] != slots[end - 1] + 1
        if apart or end - start == most:
            found.append((start, end))
            start = end
    return found


def _opened(path: Path) -> int:
    """Open or make a file of mode 0600. Raises ValueError."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.fchmod(file, 0o600)
    except OSError as error:
        directory = path.parent
        if not directory.is_dir():
            raise ValueError(
                f"--hicache-storage-dir {directory} is not a directory; make it."
            ) from None
        raise ValueError(
            f"--hicache-storage-dir {directory} cannot be used: {path.name}: {error.strerror}; "
            "give a directory that this user may write to."
        ) from None
    return file


def _locked(path: Path) -> int:
    """Open a file and lock it. Raises ValueError where another process has it."""
    file = _opened(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise ValueError(
            f"--hicache-storage-dir {path.parent} is in use by another server; give each server a "
            "directory of its own."
        ) from None
    return file


def _write(file: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data``. Raises OSError."""
    view = memoryview(data)
    while view:
        count = os.pwrite(file, view, offset)
        view, offset = view[count:], offset + count


def _read(file: int, into: memoryview, offset: int) -> int:
    """Fill ``into`` as far as the file goes. Return the number of bytes. Raises OSError."""
    done = 0
    while done < len(into):
        count = os.preadv(file, [into[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done
