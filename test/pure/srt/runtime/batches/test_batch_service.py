"""Batches that are being created: they count, and their input stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.batches import batch_service
from sglang.srt.runtime.batches.batch_input import InputLimits
from sglang.srt.runtime.batches.batch_records import BatchRecord, Order
from sglang.srt.runtime.batches.batch_runner import LineAnswer
from sglang.srt.runtime.batches.batch_service import BatchService, StorageLimits
from sglang.srt.runtime.batches.line_seats import LineSeats

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{}}\n'


async def _answer(url: str, body: bytes, owner: str) -> LineAnswer:
    return LineAnswer(200, b"{}", "r")


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[BatchService]:
    """A service whose lines find no seat: its batches do not end."""
    limits = StorageLimits(1 << 20, 1 << 21), InputLimits(100, 1 << 16)
    service = BatchService(directory, *limits, LineSeats(4, lambda running: False), _answer)
    try:
        yield service
    finally:
        await service.close()


def _order(service: BatchService, owner: str = "a") -> Order:
    upload = service.files.begin(owner)
    upload.write(LINE)
    file = upload.finish("in.jsonl", "batch", 7200)
    return Order(owner=owner, input_file_id=file.id, endpoint="/v1/completions")


def test_batches_created_at_once_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_service, "MAX_OPEN", 2)

    async def main() -> None:
        async with opened(tmp_path) as service:
            orders = [_order(service) for _ in range(5)]
            other = _order(service, "b")
            creations = (service.create(order) for order in [*orders, other])
            found = await asyncio.gather(*creations, return_exceptions=True)
            assert [type(one) for one in found[:2]] == [BatchRecord] * 2
            assert [type(one) for one in found[2:5]] == [RequestError] * 3
            assert isinstance(found[5], BatchRecord)

    asyncio.run(main())


def test_input_stays_while_its_batch_is_created(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as service:
            order = _order(service)
            file = service.files.find(order.input_file_id, "a")
            creation = asyncio.create_task(service.create(order))
            await asyncio.sleep(0)  # the record is saved in a thread
            assert not creation.done()
            with pytest.raises(RequestError, match="is the input of a batch"):
                service.files.delete(file)
            await creation

    asyncio.run(main())
