"""The store of files: its limits count what is there, while threads add to it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.batches import file_store
from sglang.srt.runtime.batches.file_store import FileRecord, FileStore

LIFETIME = 3600


class _Now:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _store(directory: Path, now: _Now) -> FileStore:
    return FileStore(directory, 1 << 10, 1 << 20, now=now)


def _upload(store: FileStore, owner: str = "a", seconds: int = LIFETIME) -> FileRecord:
    upload = store.begin(owner)
    upload.write(b"x")
    return upload.finish("x", "batch", seconds)


def test_expired_files_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_store, "MAX_FILES", 1)
    now = _Now()
    store = _store(tmp_path, now)
    _upload(store)
    with pytest.raises(RequestError, match="1 files are stored for this key; at most 1"):
        store.begin("a")
    now.now += LIFETIME
    fresh = _upload(store)
    assert store.of("a") == [fresh]


class _Interrupted(str):
    """An owner at whose first comparison another thread has its turn."""

    store: FileStore | None = None
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        store, self.store = self.store, None
        if store is not None:
            _upload(store, "another")
        return str.__eq__(self, other)


def test_a_record_that_is_not_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path, 1 << 10, 1 << 12)
    upload = store.begin("")
    upload.write(b"x")
    real, handles = os.fsync, list[int]()

    def refuse(handle: int) -> None:
        handles.append(handle)
        if len(handles) == 2:  # the record's; the first is the file's
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RequestError, match="cannot write to its disk"):
        upload.finish("a", "batch", 3600)
    upload.drop()
    assert list((tmp_path / "files").iterdir()) == []
    assert store.size == 0


def test_a_file_may_be_added_while_files_are_listed(tmp_path: Path) -> None:
    store = _store(tmp_path, _Now())
    own = [_upload(store).id for _ in range(3)]
    owner = _Interrupted("a")
    owner.store = store
    assert {record.id for record in store.of(owner)} == {*own}
    owner.store = store
    store.begin(owner).drop()
