"""A directory of batches that was there before: nothing of others, and nothing unread, is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sglang.srt.runtime.batches.batch_input import InputLimits
from sglang.srt.runtime.batches.batch_records import Order
from sglang.srt.runtime.batches.batch_runner import LineAnswer
from sglang.srt.runtime.batches.batch_service import BatchService, StorageLimits
from sglang.srt.runtime.batches.line_seats import LineSeats

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{}}\n'
ZEROS = "0" * 32


async def _answer(url: str, body: bytes, owner: str) -> LineAnswer:
    return LineAnswer(200, b"{}", "r")


def _service(directory: Path) -> BatchService:
    limits = StorageLimits(1 << 20, 1 << 21), InputLimits(100, 1 << 16)
    return BatchService(directory, *limits, LineSeats(4, lambda running: True), _answer)


@contextmanager
def opened(directory: Path) -> Iterator[BatchService]:
    service = _service(directory)
    try:
        yield service
    finally:
        asyncio.run(service.close())


def _upload(service: BatchService) -> str:
    upload = service.files.begin("")
    upload.write(LINE)
    return upload.finish("in.jsonl", "batch", 7200).id


def _tree(directory: Path) -> dict[str, bytes]:
    found = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    return {str(path.relative_to(directory)): data for path, data in found.items()}


def test_what_others_put_into_the_directory_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as service:
        kept = service.files.path(_upload(service))
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("files/notes.txt", "files/mine.json", "files/file-a.data", "batches/notes.tmp"):
        (tmp_path / name).write_text("mine")
    for name in ("files/file-dir.data", f"files/file-{ZEROS}.json", "batches/batch_a.json"):
        (tmp_path / name).mkdir()
    (tmp_path / f"batches/batch_{ZEROS}.json").symlink_to(precious)
    before = _tree(tmp_path)
    cut = kept.with_name(f"file-{'1' * 32}.data"), kept.with_suffix(".part")
    for path in cut:
        path.write_bytes(b"cut")
    with opened(tmp_path) as service:
        assert service.files.size == len(LINE)
        assert _tree(tmp_path) == before
        assert not any(path.exists() for path in cut)


@pytest.mark.parametrize("name", ["files", "batches"])
def test_a_directory_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / name / f"file-{ZEROS}.data").write_text("mine")
    before = _tree(tmp_path)
    with pytest.raises(OSError, match=f"has a folder '{name}' that no server made; give an empty"):
        _service(tmp_path)
    assert _tree(tmp_path) == before
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("torn", [b"", b"{", b"\xff", b"[" * 100_000, b'{"id":"file-1"}'])
def test_a_record_that_cannot_be_read_keeps_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, torn: bytes
) -> None:
    async def first() -> tuple[str, str]:
        service = _service(tmp_path)
        file = _upload(service)
        order = Order(owner="", input_file_id=file, endpoint="/v1/completions")
        record = await service.create(order)
        while not record.ended:
            await asyncio.sleep(0.002)
        await service.close()
        return file, record.id

    file, batch = asyncio.run(first())
    paths = tmp_path / "files" / f"{file}.json", tmp_path / "batches" / f"{batch}.json"
    whole = [path.read_bytes() for path in paths]
    for path in paths:
        path.write_bytes(torn)
    before = _tree(tmp_path)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.ERROR), opened(tmp_path) as service:
            assert [record.id for record in service.records] == []
            assert file not in [record.id for record in service.files.of("")]
        assert _tree(tmp_path) == before
        assert all(f"{path} cannot be read" in caplog.text for path in paths)
    for path, data in zip(paths, whole):
        path.write_bytes(data)
    with opened(tmp_path) as service:  # as it was
        assert service.records.find(batch, "").status == "completed"
        assert service.files.find(file, "").bytes == len(LINE)
