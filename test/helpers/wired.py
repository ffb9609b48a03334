"""A worker behind a wire: it gets decoded copies of batches and masks, and its outputs are decoded
copies too. It fails where a batch is not data, or where a worker changes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.disk_jobs import Disk
from sglang.srt.core.ints import from_wire, to_wire
from sglang.srt.core.workers import NO_MASKS, Finish, Mask, Masks, Worker

encode = msgspec.msgpack.Encoder(enc_hook=to_wire).encode
decode_batch = msgspec.msgpack.Decoder(Batch, ext_hook=from_wire).decode
decode_result = msgspec.msgpack.Decoder(StepResult, ext_hook=from_wire).decode


class WiredMasks:
    def __init__(self, masks: Masks) -> None:
        self.masks = masks

    def make(self) -> Sequence[Mask]:
        made = msgspec.msgpack.encode(self.masks.make())
        return msgspec.msgpack.decode(made, type=list[Mask])


class Wired:
    """Implements ``Worker`` around another one.

    Attributes:
        sent: bytes of each batch.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.sent: list[int] = []

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        data = encode(batch)
        self.sent.append(len(data))
        copy = decode_batch(data)
        finish = self.worker.launch(copy, WiredMasks(masks))

        def wait() -> StepResult:
            result = decode_result(encode(finish()))
            assert encode(copy) == data, "the worker has changed its batch"
            return result

        return wait

    @property
    def disk(self) -> Disk | None:
        return self.worker.disk

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        return self.worker.load_adapter(number, path, pinned)

    def unload_adapter(self, number: int) -> None:
        self.worker.unload_adapter(number)
