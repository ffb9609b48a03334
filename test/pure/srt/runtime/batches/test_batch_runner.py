"""Batches over scripted routes: every request has one answer, whatever stops the server."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.batches import batch_records, batch_runner, record_files
from sglang.srt.runtime.batches.answer_log import AnswerLog
from sglang.srt.runtime.batches.batch_input import InputLimits
from sglang.srt.runtime.batches.batch_records import BatchRecord, Order
from sglang.srt.runtime.batches.batch_runner import LineAnswer
from sglang.srt.runtime.batches.batch_service import BatchService, StorageLimits
from sglang.srt.runtime.batches.line_seats import LineSeats

CHAT = "/v1/chat/completions"
STORAGE, LIMITS = StorageLimits(1 << 20, 1 << 21), InputLimits(100, 1 << 16)
GOOD = LineAnswer(200, b'{"object":"chat.completion"}', "r")


def lines_of(count: int, **body: Any) -> bytes:
    rows = [
        {"custom_id": f"c{i}", "method": "POST", "url": CHAT, "body": {"messages": [], **body}}
        for i in range(count)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


class World:
    """One directory, whose servers come and go; ``answered``: how often each request was run."""

    def __init__(self, directory: Path, most: int = 4) -> None:
        self.directory, self.most, self.clock = directory, most, 1_000_000.0
        self.room: Callable[[int], bool] = lambda running: True
        self.answers: list[LineAnswer] = []
        self.running = self.peak = self.count = 0
        self.stop_at = -1
        self.stopped = asyncio.Event()
        self.held = asyncio.Event()
        self.held.set()

    async def answer(self, url: str, body: bytes, owner: str) -> LineAnswer:
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await asyncio.sleep(0)
            await self.held.wait()
            self.count += 1
            if self.count == self.stop_at:
                self.stopped.set()
            return self.answers.pop(0) if self.answers else GOOD
        finally:
            self.running -= 1

    def service(self) -> BatchService:
        seats = LineSeats(self.most, lambda running: self.room(running))
        return BatchService(self.directory, STORAGE, LIMITS, seats, self.answer, lambda: self.clock)

    def upload(self, service: BatchService, data: bytes, owner: str = "") -> str:
        upload = service.files.begin(owner)
        upload.write(data)
        return upload.finish("in.jsonl", "batch", 7200).id


async def ended(record: BatchRecord) -> BatchRecord:
    while not record.ended:
        await asyncio.sleep(0.002)
    return record


def rows_of(service: BatchService, record: BatchRecord, which: int) -> list[dict[str, Any]]:
    if not record.kept[which]:
        return []
    data = service.files.path(record.answers[which]).read_bytes()
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def order(file: str, owner: str = "", **more: Any) -> Order:
    return Order(owner=owner, input_file_id=file, endpoint=CHAT, **more)


def test_a_batch_has_one_answer_a_request(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        world.answers = [GOOD, LineAnswer(400, b'{"error":{"code":"x"}}', "r", "x")]
        service = world.service()
        record = await service.create(order(world.upload(service, lines_of(20))))
        assert record.public()["status"] == "validating"
        await ended(record)
        public = record.public()
        assert public["status"] == "completed"
        assert public["request_counts"] == {"total": 20, "completed": 19, "failed": 1}
        good, bad = rows_of(service, record, 0), rows_of(service, record, 1)
        assert len({row["custom_id"] for row in good + bad}) == len(good + bad) == 20
        assert good[0]["response"]["body"] == {"object": "chat.completion"}
        assert bad[0]["response"]["status_code"] == 400
        assert world.peak <= 4
        await service.close()

    asyncio.run(main())


@settings(max_examples=12, deadline=None)
@given(
    stops=st.lists(st.integers(1, 12), max_size=4),
    tears=st.lists(st.integers(0, 40), min_size=4, max_size=4),
)
def test_stopped_servers_lose_and_repeat_no_answer(
    tmp_path_factory: pytest.TempPathFactory, stops: list[int], tears: list[int]
) -> None:
    """Each server is stopped after some answers; the end of a file may be torn meanwhile."""
    directory = tmp_path_factory.mktemp("batches")

    async def main() -> None:
        world, id = World(directory, most=3), ""
        for stop, tear in zip(stops, tears):
            world.stop_at = world.count + stop
            world.stopped.clear()
            service = world.service()
            service.start()
            if not id:
                id = (await service.create(order(world.upload(service, lines_of(30))))).id
            record = service.records.find(id, "")
            _, left = await asyncio.wait(
                {asyncio.ensure_future(world.stopped.wait()), asyncio.ensure_future(ended(record))},
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in left:
                task.cancel()
            await service.close()
            if record.ended:
                break
            path = service.records.path(id, "output")
            if path.exists() and tear:  # as a write that the end of a process cut
                with open(path, "ab") as file:
                    file.write(b'{"id":"batch_req_ab_7","custom_id":"c7","response"'[:tear])
        world.stop_at = -1
        service = world.service()
        service.start()
        if not id:
            id = (await service.create(order(world.upload(service, lines_of(30))))).id
        record = await ended(service.records.find(id, ""))
        found = Counter(row["custom_id"] for row in rows_of(service, record, 0))
        assert found == Counter(f"c{i}" for i in range(30))
        assert record.public()["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
        await service.close()

    asyncio.run(main())


def test_a_server_that_stops_while_finalizing_keeps_the_answers(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        service = world.service()
        record = await service.create(order(world.upload(service, lines_of(3))))
        await ended(record)
        await service.close()
        # As if the process had ended between the moves and the last state.
        (tmp_path / "files" / f"{record.answers[0]}.json").unlink()
        record.status = "finalizing"
        service.records.save(record)
        service = world.service()
        service.start()
        again = await ended(service.records.find(record.id, ""))
        assert again.status == "completed"
        assert len(rows_of(service, again, 0)) == 3
        assert service.files.find(record.answers[0], "").purpose == "batch_output"
        await service.close()

    asyncio.run(main())


def test_answers_that_are_gone_end_their_batch(tmp_path: Path) -> None:
    """A server stops between the move of the answers and its record; then they expire."""

    async def main() -> None:
        world = World(tmp_path)
        service = world.service()
        record = await service.create(order(world.upload(service, lines_of(2)), output_seconds=1))
        await ended(record)
        while service._runner._tasks:
            await asyncio.sleep(0)
        record.status = "finalizing"
        service.records.save(record)
        await service.close()
        world.clock += 3600
        service = world.service()
        service.start()
        again = service.records.find(record.id, "")
        assert (await asyncio.wait_for(ended(again), 20)).status == "completed"
        await service.close()

    asyncio.run(main())


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runner, "DISK_WAIT", 0.001)
    failures, write = [3], os.pwrite

    def pwrite(handle: int, data: Any, at: int) -> int:
        if failures[0]:
            failures[0] -= 1
            write(handle, bytes(data)[:5], at)  # a part was taken
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)

    async def main() -> None:
        world = World(tmp_path, most=1)
        service = world.service()
        record = await ended(await service.create(order(world.upload(service, lines_of(5)))))
        assert {row["custom_id"] for row in rows_of(service, record, 0)} == {
            f"c{i}" for i in range(5)
        }
        assert world.count == 5  # nothing was computed again
        await service.close()

    asyncio.run(main())


def test_what_may_pass_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runner, "FIRST_WAIT", 0.001)
    full = LineAnswer(429, b'{"error":{}}', "r", "queue_full")
    lost = LineAnswer(503, b'{"error":{}}', "r", "engine_lost")

    async def main() -> None:
        world = World(tmp_path, most=1)
        world.answers = [full] * 5 + [GOOD] + [lost] * 9
        service = world.service()
        record = await ended(await service.create(order(world.upload(service, lines_of(4)))))
        assert record.public()["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
        assert world.count == 6 + 3 * batch_runner.MAX_LOSSES
        counts = service.counts()
        assert (counts["open"], counts["running"], counts["answered"]) == (0, 0, 4)
        assert counts["again"] == world.count - 4
        assert counts["file_bytes"] == service.files.size > 0
        await service.close()

    asyncio.run(main())


def test_a_cancelled_batch_keeps_its_answers(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, most=2)
        world.stop_at = 3
        service = world.service()
        record = await service.create(order(world.upload(service, lines_of(50))))
        await world.stopped.wait()
        world.held.clear()
        await asyncio.wait_for(service.cancel(record), 5)
        await ended(record)
        assert record.status == "cancelled"
        counts = record.public()["request_counts"]
        assert 1 <= counts["completed"] == len(rows_of(service, record, 0)) < 50
        with pytest.raises(RequestError, match="is cancelled; only one that has not ended"):
            await service.cancel(record)
        await service.close()

    asyncio.run(main())


@pytest.mark.parametrize("refused", [False, True])
def test_a_batch_may_end_while_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """A batch is finalized while the disk takes, or refuses, its cancelled state."""

    async def main() -> None:
        world = World(tmp_path)
        world.held.clear()
        service = world.service()
        record = await service.create(order(world.upload(service, lines_of(1))))
        while not world.running:
            await asyncio.sleep(0)
        real, begun = record_files.save, threading.Event()

        def save(path: Path, state: BatchRecord) -> None:
            if state.status == "cancelling" and not begun.is_set():
                begun.set()
                while record.status != "finalizing":
                    time.sleep(0.001)
                if refused:
                    raise OSError(errno.ENOSPC, "No space left on device")
            real(path, state)

        monkeypatch.setattr(batch_records, "save", save)
        cancelled = asyncio.ensure_future(service.cancel(record))
        await asyncio.to_thread(begun.wait)
        world.held.set()
        if refused:
            with pytest.raises(RequestError, match="cannot write to its disk"):
                await cancelled
        else:
            await cancelled
        await asyncio.wait_for(ended(record), 20)
        assert (record.status, record.completed) == ("completed", 1)
        await service.close()
        [kept] = world.service().records
        assert kept.status == "completed"

    asyncio.run(main())


def test_a_batch_cancelled_before_it_was_checked_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        service = world.service()
        file = world.upload(service, lines_of(5))
        record = await service.create(order(file))
        record.enter("cancelling", world.clock)  # the server ended before the check
        await service.close()
        record.total = 0
        service.records.save(record)
        service = world.service()
        service.start()
        record = await ended(service.records.find(record.id, ""))
        assert (record.status, world.count) == ("cancelled", 0)
        assert record.public()["output_file_id"] is None
        await service.close()

    asyncio.run(main())


def test_an_expired_batch_says_which_requests_are_left(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        world.held.clear()
        service = world.service()
        file = world.upload(service, lines_of(5))
        record = await service.create(order(file, seconds=3600))
        while not world.running:
            await asyncio.sleep(0.001)
        await service.close()
        world.clock += 3601  # while no server was there
        service = world.service()
        service.start()
        await ended(service.records.find(record.id, ""))
        record = service.records.find(record.id, "")
        assert record.status == "expired"
        rows = rows_of(service, record, 1)
        assert {row["error"]["code"] for row in rows} == {"batch_expired"}
        assert len(rows) == 5
        while service._runner._tasks:  # the record is being saved
            await asyncio.sleep(0.001)
        world.clock += 31 * 86_400
        service.sweep()
        with pytest.raises(RequestError, match="no batch"):
            service.records.find(record.id, "")
        with pytest.raises(RequestError, match="no file"):
            service.files.find(record.answers[1], "")
        assert service.files.size == 0
        assert [path.name for path in (tmp_path / "files").iterdir()] == []
        await service.close()

    asyncio.run(main())


def test_requests_of_batches_take_what_others_leave(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        world.room = lambda running: False
        service = world.service()
        record = await service.create(order(world.upload(service, lines_of(3))))
        while record.status != "in_progress":
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.12)
        assert world.count == 0
        world.room = lambda running: running < 1
        await ended(record)
        assert world.peak == 1
        await service.close()

    asyncio.run(main())


def test_owners_take_turns() -> None:
    async def main() -> None:
        seats, order = LineSeats(2, lambda running: True), list[str]()

        async def one(owner: str) -> None:
            await seats.take(owner)
            order.append(owner)
            await asyncio.sleep(0)
            seats.give(owner)

        await asyncio.gather(*(one("a") for _ in range(8)), *(one("b") for _ in range(2)))
        assert order.index("b") <= 2
        assert Counter(order) == {"a": 8, "b": 2}
        assert seats.running == 0

    asyncio.run(main())


def test_requests_that_wait_to_be_tried_again_have_no_seat(tmp_path: Path) -> None:
    """One key's tokens are used up, and another key's batch is answered meanwhile."""

    async def main() -> None:
        world, refused = World(tmp_path, most=2), Counter[str]()

        async def answer(url: str, body: bytes, owner: str) -> LineAnswer:
            refused[owner] += owner == "a"
            code = "rate_limit_exceeded" if owner == "a" else ""
            return LineAnswer(429, b"", "r", code) if code else await World.answer(
                world, url, body, owner)  # fmt: skip

        world.answer = answer  # type: ignore[method-assign]
        service = world.service()
        files = {owner: world.upload(service, lines_of(9), owner) for owner in "ab"}
        first = await service.create(order(files["a"], "a"))
        while refused["a"] < 2:
            await asyncio.sleep(0)
        second = await asyncio.wait_for(ended(await service.create(order(files["b"], "b"))), 30)
        assert (second.status, second.completed) == ("completed", 9)
        assert (first.status, first.completed) == ("in_progress", 0)
        await service.close()
        assert service.counts()["running"] == 0

    asyncio.run(main())


def test_an_owner_has_so_many_requests_that_have_begun() -> None:
    async def main() -> None:
        seats = LineSeats(2, lambda running: True)
        await seats.take("a")
        await seats.take("a")
        resting = [asyncio.ensure_future(seats.again("a", 0.0)) for _ in range(2)]
        await asyncio.sleep(0)
        third = asyncio.ensure_future(seats.take("a"))
        await asyncio.gather(*resting)
        assert not third.done()
        seats.give("a")
        await third
        resting = [asyncio.ensure_future(seats.again("a", 3600.0)) for _ in range(2)]
        await asyncio.sleep(0)
        assert seats.running == 0
        for task in resting:
            task.cancel()
        await asyncio.gather(*resting, return_exceptions=True)
        seats.give("a")
        seats.give("a")
        assert seats.running == 0

    asyncio.run(main())


# -- files ----------------------------------------------------------------------------------------


def test_files_belong_to_their_owners(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        service = world.service()
        file = world.upload(service, lines_of(1), "a")
        for id in (file, "../lock", "file-../../etc/passwd", "", "\0", f"{file}.json"):
            with pytest.raises(RequestError, match="no file") as refused:
                service.files.find(id, "b")
            assert refused.value.code == "not_found"
        with pytest.raises(RequestError, match="no file"):
            await service.create(order(file, "b"))
        world.held.clear()
        record = await service.create(order(file, "a"))
        with pytest.raises(RequestError, match="cancel that batch first"):
            service.files.delete(service.files.find(file, "a"))
        with pytest.raises(RequestError, match="no batch"):
            service.records.find(record.id, "b")
        await service.close()

    asyncio.run(main())


def test_what_is_stored_is_the_owners_alone(tmp_path: Path) -> None:
    """Also where the process makes files for all, and an earlier server made the directories."""
    (tmp_path / "kept" / "files").mkdir(parents=True, mode=0o755)
    (tmp_path / "kept" / "lock").touch(mode=0o600)

    async def main() -> None:
        world = World(tmp_path / "kept")
        service = world.service()
        record = await service.create(order(world.upload(service, lines_of(3))))
        arriving = service.files.begin("")
        arriving.write(b"x")
        await ended(record)
        found = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "kept").rglob("*")}
        assert {path.suffix for path in found} >= {"", ".data", ".json", ".part"}
        assert {path: mode for path, mode in found.items() if mode & 0o077} == {}
        arriving.drop()
        await service.close()

    before = os.umask(0)
    try:
        asyncio.run(main())
    finally:
        os.umask(before)


def test_limits_of_storage_are_exact(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        service = world.service()
        upload = service.files.begin("")
        upload.write(b"x" * STORAGE.file_bytes)
        with pytest.raises(RequestError, match="--batch-max-file-bytes"):
            upload.write(b"x")
        upload.drop()
        assert service.files.size == 0
        assert list((tmp_path / "files").iterdir()) == []
        for _ in range(2):
            world.upload(service, b"x" * STORAGE.file_bytes)
        with pytest.raises(RequestError, match="--batch-max-bytes") as refused:
            service.files.begin("").write(b"x")
        assert refused.value.code == "overloaded"
        with pytest.raises(OSError, match="in use by another server"):
            world.service()
        await service.close()
        again = world.service()
        assert again.files.size == STORAGE.all_bytes
        await again.close()

    asyncio.run(main())


def test_a_disk_without_room_refuses_an_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        service = World(tmp_path).service()
        upload = service.files.begin("")
        upload.write(b"x")

        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(RequestError, match="No space left on device") as refused:
                upload.finish("a", "batch", 3600)
        assert refused.value.code == "overloaded"
        upload.drop()
        assert service.files.size == 0
        assert list((tmp_path / "files").iterdir()) == []
        await service.close()

    asyncio.run(main())


@pytest.mark.parametrize("at", ["open", "pread"])
def test_a_log_that_cannot_be_opened_holds_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A batch tries to open its log again and again while the disk is full."""
    made, calls, real = list[int](), 0, os.open

    def opened(*args: Any) -> int:
        if at == "open" and made:
            raise OSError(errno.ENOSPC, "No space left on device")
        made.append(real(*args))
        return made[-1]

    def read(*args: Any) -> bytes:
        nonlocal calls
        calls += 1
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "pread", read)
    with pytest.raises(OSError):
        AnswerLog(tmp_path / "output", tmp_path / "errors")
    assert len(made) + calls == (1 if at == "open" else 3)
    for handle in made:
        with pytest.raises(OSError):
            os.fstat(handle)


def test_a_log_is_closed_where_the_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AnswerLog(tmp_path / "output", tmp_path / "errors")
    handles = [file._handle for file in log._files]

    def refuse(*args: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(OSError):
        log.close()
    for handle in handles:
        with pytest.raises(OSError):
            os.fstat(handle)


def test_a_log_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    paths = tmp_path / "output", tmp_path / "errors"
    log = AnswerLog(*paths)
    log.write(4, b'{"id":"batch_req_ab_4","custom_id":"x"}\n', True)
    log.write(4, b'{"id":"batch_req_ab_4","custom_id":"y"}\n', True)
    log.close()
    with open(paths[0], "ab") as file:
        file.write(b'{"id":"batch_req_ab_5","cus')
    log = AnswerLog(*paths)
    assert log.done == {4}
    log.write(5, b'{"id":"batch_req_ab_5","custom_id":"z"}\n', True)
    log.close()
    log.write(6, b'{"id":"batch_req_ab_6","custom_id":"z"}\n', True)  # closed: not written
    assert [json.loads(line)["custom_id"] for line in paths[0].read_text().splitlines()] == [
        "x", "z",
    ]  # fmt: skip
