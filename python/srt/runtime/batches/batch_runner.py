"""BatchRunner: runs batches from input files to answer files, also across restarts of the server.

A request is answered when its line is in the log; it never gets a second answer. Temporary failures
(no room, no engine, no disk space) are retried. A restarted server runs the unanswered requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
from sglang.srt.runtime.batches.answer_log import AnswerLog
from sglang.srt.runtime.batches.batch_input import BatchLine, InputError, InputLimits, check, lines
from sglang.srt.runtime.batches.batch_records import BatchRecord, BatchRecords
from sglang.srt.runtime.batches.file_store import FileStore
from sglang.srt.runtime.batches.line_seats import LineSeats
from sglang.srt.runtime.offload import in_thread

log = logging.getLogger("sglang.server")
T = TypeVar("T")

AGAIN = (429, 503)  # statuses of answers that are retried
MAX_LOSSES = 3  # engines that one request may lose
FIRST_WAIT, LAST_WAIT = 0.5, 30.0  # shortest and longest seconds between attempts of a request
CANCELLED = ("validating", "in_progress")  # states in which a batch can be cancelled
DISK_WAIT = 5.0  # seconds between two attempts to write


class LineAnswer(NamedTuple):
    """Answer of a route to one request. ``code``: the error's code, "" for no error."""

    status: int
    body: bytes
    request_id: str
    code: str = ""


Answer = Callable[[str, bytes, str], Awaitable[LineAnswer]]  # URL, body and owner


class _Answered(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Failure(msgspec.Struct):
    code: str
    message: str


class _AnswerLine(msgspec.Struct):
    id: str
    custom_id: str
    response: _Answered | None
    error: _Failure | None


_EXPIRED = _Failure("batch_expired", "The batch expired before this request was run.")
_INTERNAL = (
    b'{"error":{"message":"An internal error occurred; see the server\'s log.",'
    b'"type":"server_error","param":null,"code":"internal_error"}}'
)


class BatchRunner:
    """Runs every batch of ``records`` that has not ended.

    Args:
        answer: runs one request.
        seats: limit how many requests of batches run at once.
        limits: limits of the input.
        now: returns the seconds since the epoch.
    """

    def __init__(
        self,
        records: BatchRecords,
        files: FileStore,
        answer: Answer,
        seats: LineSeats,
        limits: InputLimits,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._records, self._files, self._answer = records, files, answer
        self._seats, self._limits, self._now = seats, limits, now
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}
        self._saving = asyncio.Lock()
        self._counted = Counter({"answered": 0, "again": 0})

    def begin(self, record: BatchRecord) -> None:
        """Run a batch from its current state on."""
        self._stops[record.id] = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._guarded(record))
        self._tasks[record.id] = task
        task.add_done_callback(lambda _: self._forget(record.id))

    def _forget(self, id: str) -> None:
        del self._tasks[id], self._stops[id]

    def counts(self) -> dict[str, float]:
        """Return this runner's numbers for metrics."""
        return {"running": self._seats.running, **self._counted}

    async def save(self, record: BatchRecord) -> None:
        """Write a record to disk. Raises OSError."""
        async with self._saving:
            await in_thread(partial(self._records.save, record))

    async def cancel(self, record: BatchRecord) -> None:
        """Cancel a batch; its answers so far are kept. On OSError the batch continues."""
        if record.status not in CANCELLED:
            return
        # The batch continues until its new state is on disk, and may have ended by then.
        changed = msgspec.structs.replace(record, moments=dict(record.moments))
        changed.enter("cancelling", self._now())
        async with self._saving:
            await in_thread(partial(self._records.write, changed))
        if record.status in CANCELLED:
            record.enter("cancelling", self._now())
            self._stops[record.id].set()

    async def close(self) -> None:
        """Stop all batches. The next runner will run the unanswered requests."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._seats.close()

    async def _guarded(self, record: BatchRecord) -> None:
        try:
            await self._run(record)
        except Exception as error:
            log.exception("the batch %s failed", record.id)
            record.errors = [InputError("internal_error", f"{type(error).__name__}; see the log.")]
            record.enter("failed", self._now())
            with suppress(OSError):
                await self.save(record)

    async def _run(self, record: BatchRecord) -> None:
        if record.status == "validating" and not await self._validated(record):
            return
        if record.status in ("in_progress", "cancelling"):
            await self._answered(record)
        if record.status == "finalizing":
            await self._finalize(record)

    async def _enter(self, record: BatchRecord, status: str) -> None:
        record.enter(status, self._now())
        await _retried(partial(self.save, record))

    async def _validated(self, record: BatchRecord) -> bool:
        path, order = self._files.path(record.order.input_file_id), record.order
        try:
            found = await asyncio.to_thread(check, path, order.endpoint, self._limits)
        except OSError as error:
            found = 0, [InputError("file_lost", f"The file cannot be read ({error.strerror}).")]
        record.total = found[0]
        if record.status != "validating":  # cancelled meanwhile
            return True
        record.errors = found[1]
        await self._enter(record, "failed" if record.errors else "in_progress")
        return not record.errors

    async def _answered(self, record: BatchRecord) -> None:
        """Run every unanswered request, until the batch is cancelled or expires."""
        paths = [self._records.path(record.id, name) for name in ("output", "errors")]
        answers = await _retried(partial(in_thread, partial(AnswerLog, *paths)))
        work = _BatchWork(record, answers)
        work.count()
        try:
            if record.status == "in_progress":
                await self._until_stopped(work)
            record.ends_as = "completed"
            if record.status == "cancelling":
                record.ends_as = "cancelled"
            elif len(answers.done) < record.total:
                record.ends_as = "expired"
                await _retried(partial(in_thread, partial(self._expire, work)))
            work.count()
        finally:
            with suppress(OSError):
                await asyncio.to_thread(answers.close)
        await self._enter(record, "finalizing")

    async def _until_stopped(self, work: _BatchWork) -> None:
        """Run requests until all are answered, the batch is cancelled, or its time is over."""
        loop = asyncio.get_running_loop()
        stop = loop.create_task(self._stops[work.record.id].wait())
        running = loop.create_task(self._lines(work))
        left = max(work.record.expires_at - self._now(), 0.0)
        try:
            await asyncio.wait({running, stop}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            running.cancel()
            stop.cancel()
            await asyncio.gather(running, stop, return_exceptions=True)

    async def _lines(self, work: _BatchWork) -> None:
        owner, tasks = work.record.order.owner, set[asyncio.Task[None]]()
        path = self._files.path(work.record.order.input_file_id)
        source = lines(path, self._limits.line_bytes)
        try:
            while (found := await asyncio.to_thread(next, source, None)) is not None:
                if found[0] in work.answers.done:
                    continue
                await self._seats.take(owner)
                task = asyncio.get_running_loop().create_task(self._line(work, *found))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
        finally:
            left = list(tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _line(self, work: _BatchWork, number: int, line: BatchLine) -> None:
        """Run one request, which has a seat, and write its answer."""
        owner = work.record.order.owner
        try:
            answer = await self._tried(line, owner)
            response = _Answered(answer.status, answer.request_id, msgspec.Raw(answer.body))
            data, ok = work.line(number, line, response), answer.status == 200
            write = partial(work.answers.write, number, data, ok)
            await _retried(partial(in_thread, write))
            self._counted["answered"] += 1
            work.count()
        finally:
            self._seats.give(owner)

    async def _tried(self, line: BatchLine, owner: str) -> LineAnswer:
        """Run a request, again after temporary failures, and return its final answer. The request
        has no seat between two attempts."""
        wait, losses = FIRST_WAIT, 0
        while True:
            try:
                answer = await self._answer(line.url, bytes(line.body), owner)
            except Exception:
                log.exception("a request of a batch failed")
                return LineAnswer(500, _INTERNAL, "", "internal_error")
            losses += answer.code == "engine_lost"
            if answer.status not in AGAIN or losses >= MAX_LOSSES:
                return answer
            self._counted["again"] += 1
            await self._seats.again(owner, wait)
            wait = min(2 * wait, LAST_WAIT)

    def _expire(self, work: _BatchWork) -> None:
        """Write an error for every unanswered request. Raises OSError."""
        path = self._files.path(work.record.order.input_file_id)
        for number, line in lines(path, self._limits.line_bytes):
            work.answers.write(number, work.line(number, line, None), False)

    async def _finalize(self, record: BatchRecord) -> None:
        """Move the answers into the file store. May be repeated after an interruption."""
        for id, name, kept in zip(record.answers, ("output", "errors"), record.kept):
            working = self._records.path(record.id, name)
            if not kept:
                working.unlink(missing_ok=True)
                continue
            take = partial(
                self._files.take_in, working, id, record.order.owner,
                f"{record.id}_{name}.jsonl", record.order.output_seconds,
            )  # fmt: skip
            await _retried(partial(in_thread, take))
        await self._enter(record, record.ends_as)


@dataclass
class _BatchWork:
    """A batch that is being answered."""

    record: BatchRecord
    answers: AnswerLog

    def count(self) -> None:
        """Copy the numbers of answers to the record."""
        self.record.completed, self.record.failed = self.answers.completed, self.answers.failed

    def line(self, number: int, line: BatchLine, response: _Answered | None) -> bytes:
        """Return the line of a request's answer; None as the response means that it expired."""
        name = f"batch_req_{self.record.id.removeprefix('batch_')}_{number}"
        failure = _EXPIRED if response is None else None
        answer = _AnswerLine(name, line.custom_id, response, failure)
        return msgspec.json.encode(answer) + b"\n"


async def _retried(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``work``, which is retried as long as it raises OSError."""
    while True:
        try:
            return await work()
        except OSError as error:
            log.warning("a batch waits because the disk refused a write: %s", error)
            await asyncio.sleep(DISK_WAIT)
