"""Slots in a file: what is read is what was written, or is known not to be."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.paths import ROOT

pytest.importorskip("torch")
from sglang.srt.core.disk_jobs import SlotKey
from sglang.srt.core.ints import ints
from sglang.srt.disk.disk_tier import digest_of
from sglang.srt.files.slot_file import HEADER_BYTES, SlotFile, runs

MODEL, OTHER_MODEL = b"m" * 32, b"o" * 32
SLOTS, BYTES, TOKENS = 8, 100, 4


def opened(directory: Path, model: bytes = MODEL, slots: int = SLOTS) -> SlotFile:
    return SlotFile(directory, model, slots, BYTES, TOKENS)


def key(number: int) -> SlotKey:
    tokens = ints(range(number, number + TOKENS))
    return SlotKey(digest_of(bytes(16), tokens), bytes(16), True, tokens)


def content(number: int) -> bytes:
    return bytes([number]) * BYTES


def write(file: SlotFile, *slots: int) -> None:
    """Write neighbours, each with its own number."""
    data = b"".join(map(content, slots))
    file.write(slots, [key(slot) for slot in slots], memoryview(data))


def read(file: SlotFile, *slots: int) -> list[bytes]:
    into = memoryview(bytearray(len(slots) * BYTES))
    count = file.read(slots, [key(slot).digest for slot in slots], into)
    return [bytes(into[i * BYTES : (i + 1) * BYTES]) for i in range(count)]


def test_slots_outlive_the_file_object(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert file.records() == []
    write(file, 2, 3)
    write(file, 6)
    assert read(file, 2, 3) == [content(2), content(3)]
    file.close()
    file = opened(tmp_path)
    found = file.records()
    assert [(record.slot, record.serial, record.key) for record in found] == [
        (2, 1, key(2)), (3, 2, key(3)), (6, 3, key(6)),
    ]  # fmt: skip
    assert read(file, 2, 3) == [content(2), content(3)]
    assert read(file, 6) == [content(6)]
    assert read(file, 4) == []
    file.close()


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    (tmp_path / "kv.data").touch(0o666)
    opened(tmp_path).close()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_slot_under_another_key_is_not_read(tmp_path: Path) -> None:
    file = opened(tmp_path)
    write(file, 2)
    assert file.read([2], [key(5).digest], memoryview(bytearray(BYTES))) == 0
    file.close()


def test_the_record_of_a_damaged_slot_is_erased(tmp_path: Path) -> None:
    file = opened(tmp_path)
    write(file, 2, 3)
    with (tmp_path / "kv.data").open("r+b") as data:
        data.seek(2 * BYTES + 5)
        data.write(b"XXXX")
    assert read(file, 2, 3) == []
    file.close()
    file = opened(tmp_path)
    assert [record.slot for record in file.records()] == [3]
    assert read(file, 3) == [content(3)]
    file.close()


def test_another_models_slots_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = opened(tmp_path)
    write(file, 2)
    file.close()
    with caplog.at_level(logging.WARNING):
        file = opened(tmp_path, OTHER_MODEL)
    assert [record.getMessage() for record in caplog.records] == [
        f"the KV in {tmp_path} belongs to another model, or to other settings that KV depends "
        "on; it is deleted to make room for this model's"
    ]
    assert file.records() == []
    assert read(file, 2) == []
    file.close()


def test_one_server_has_a_directory(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(ValueError, match="is in use by another server; give each server"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_a_server_may_have_more_or_fewer_slots_later(tmp_path: Path) -> None:
    file = opened(tmp_path)
    write(file, 2)
    write(file, 7)
    file.close()
    for slots, expected in ((20, [2, 7]), (5, [2]), (20, [2])):
        file = opened(tmp_path, slots=slots)
        assert [record.slot for record in file.records()] == expected
        file.close()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.rmdir(), "is not a directory; make it"),
        (lambda path: (path / "kv.index").mkdir(), "kv.index: Is a directory; give a directory"),
        (lambda path: (path / "kv.data").symlink_to("x"), "kv.data: Too many levels"),
    ],
)
def test_directories_that_cannot_be_used(tmp_path: Path, spoil: object, message: str) -> None:
    spoil(tmp_path)  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        opened(tmp_path)


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ValueError, match=r"needs 0.00 GB in .* and 0.00 GB are free; lower it"):
        opened(tmp_path)


def damaged(path: Path, offset: int, data: bytes = b"?") -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("offset", range(0, 2 * BYTES, 17))
def test_a_damaged_slot_is_not_read(tmp_path: Path, offset: int) -> None:
    file = opened(tmp_path)
    write(file, 2, 3)
    damaged(tmp_path / "kv.data", 2 * BYTES + offset)
    assert read(file, 2, 3) == [content(2)] * (offset >= BYTES)
    file.close()


def test_a_truncated_file_is_not_read(tmp_path: Path) -> None:
    file = opened(tmp_path)
    write(file, 2, 3)
    os.truncate(tmp_path / "kv.data", 3 * BYTES + 10)
    assert read(file, 2, 3) == [content(2)]
    assert read(file, 3) == []
    file.close()


def test_every_damage_to_the_index_is_seen(tmp_path: Path) -> None:
    file = opened(tmp_path)
    write(file, 0, 1)
    size = file._record_bytes
    file.close()
    whole = (tmp_path / "kv.index").read_bytes()
    for offset in range(HEADER_BYTES, HEADER_BYTES + size):
        damaged(tmp_path / "kv.index", offset, bytes([whole[offset] ^ 1]))
        file = opened(tmp_path)
        assert [record.slot for record in file.records()] == [1], offset
        file.close()
        (tmp_path / "kv.index").write_bytes(whole)
    for length in (0, 5, HEADER_BYTES - 1, HEADER_BYTES + size, HEADER_BYTES + 2 * size - 1):
        os.truncate(tmp_path / "kv.index", length)
        file = opened(tmp_path)
        assert len(file.records()) == (length >= HEADER_BYTES + size)
        file.close()
        (tmp_path / "kv.index").write_bytes(whole)


def test_a_deleted_file_takes_no_more(tmp_path: Path) -> None:
    file = opened(tmp_path)
    write(file, 2)
    (tmp_path / "kv.data").unlink()
    with pytest.raises(OSError, match=r"kv\.data was deleted"):
        write(file, 3)
    file.close()


@pytest.mark.parametrize("stop", range(1, 7))
def test_a_write_that_stops_leaves_no_wrong_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """Slot 2 held another key; the write stops at its nth call, or in the middle of it."""
    calls, real = iter(range(1, 100)), os.pwrite

    def pwrite(file: int, data: memoryview, offset: int) -> int:
        call = next(calls)
        if call == stop:
            real(file, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(file, data, offset)

    file = opened(tmp_path)
    file.write([2, 3], [key(50), key(51)], memoryview(content(50) + content(51)))
    monkeypatch.setattr(os, "pwrite", pwrite)
    if stop <= 3:
        with pytest.raises(OSError, match="no space left"):
            write(file, 2, 3)
    else:
        write(file, 2, 3)
    assert read(file, 2, 3) == ([content(2), content(3)] if stop > 3 else [])
    monkeypatch.undo()
    file.close()
    file = opened(tmp_path)
    for record in file.records():
        into = memoryview(bytearray(BYTES))
        number = record.key.tokens[0]
        if file.read([record.slot], [record.key.digest], into):
            assert bytes(into) == content(number), "a slot with another slot's KV"
    assert stop > 3 or read(file, 3) == []
    file.close()


CHILD = f"""
import sys
from pathlib import Path
from sglang.srt.core.disk_jobs import SlotKey
from sglang.srt.core.ints import ints
from sglang.srt.disk.disk_tier import digest_of
from sglang.srt.files.slot_file import SlotFile
file = SlotFile(Path(sys.argv[1]), {MODEL!r}, {SLOTS}, 1 << 20, {TOKENS})
number = 0
while True:
    number += 1
    tokens = ints(range(number, number + {TOKENS}))
    key = SlotKey(digest_of(bytes(16), tokens), bytes(16), True, tokens)
    data = number.to_bytes(8, "little") * (1 << 17)
    file.write([number % {SLOTS}], [key], memoryview(data))
    if number == 20:
        print("begun", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(3))
def test_a_server_killed_while_writing_leaves_no_wrong_slot(tmp_path: Path, turn: int) -> None:
    paths = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"begun\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    file = SlotFile(tmp_path, MODEL, SLOTS, 1 << 20, TOKENS)
    records = file.records()
    assert len(records) >= SLOTS - 1, "one slot at most was being written"
    into = memoryview(bytearray(1 << 20))
    for record in records:
        assert file.read([record.slot], [record.key.digest], into) == 1
        assert bytes(into) == record.key.tokens[0].to_bytes(8, "little") * (1 << 17)
    file.close()


def test_clear_forgets_all(tmp_path: Path) -> None:
    file = opened(tmp_path)
    write(file, 2, 3)
    file.clear()
    assert read(file, 2) == []
    write(file, 4)
    file.close()
    file = opened(tmp_path)
    assert [record.slot for record in file.records()] == [4]
    file.close()


def test_runs_are_neighbours() -> None:
    assert runs([3, 4, 5, 9, 10, 2], 2) == [(0, 2), (2, 3), (3, 5), (5, 6)]
    assert runs([], 2) == []
