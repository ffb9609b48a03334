"""Stages: a rank's part of a pass in pipeline parallelism.

RankForward    the forward of a rank: receives the previous stage's hidden states; one rank samples
StageRunner    the runner of a stage that is not the last: sends hidden states to the next stage
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.core.batch import Batch, RowOutput, Sample, StepResult
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.workers import NO_MASKS, Finish, Masks
from sglang.srt.logits.drawing import Drawing, drawn
from sglang.srt.numeric.torch_later import Tensor, torch, without_gradients
from sglang.srt.ranks.links import InLink, OutLink
from sglang.srt.ranks.rank_messages import (
    SampledIds,
    StatesHead,
    decode_message,
    encode_message,
)
from sglang.srt.worker.forward import Forward
from sglang.srt.worker.inputs import Embedded, Inputs
from sglang.srt.worker.runner import ModelRunner


class StatesLink:
    """Sends hidden states from a rank to the same rank of the next stage, through host memory.

    ``before``: link from the previous stage; None in the first stage. ``after``: link to the next
    stage; None in the last stage.
    """

    def __init__(self, epoch: int, before: InLink | None, after: OutLink | None) -> None:
        self.epoch, self._before, self._after = epoch, before, after
        self.waited = 0.0  # seconds that ``receive`` waited for the last states
        self.seconds: list[float] = []  # computing time of each earlier stage, for the last states

    @property
    def receives(self) -> bool:
        return self._before is not None

    @property
    def sends(self) -> bool:
        return self._after is not None

    def send(self, batch: int, states: Tensor, seconds: float) -> None:
        """Send the states [T, width] of a batch, which must not change later. ``seconds``: time
        that this stage has computed."""
        assert self._after is not None
        host = states.detach().cpu().contiguous()
        dtype = str(host.dtype).removeprefix("torch.")
        rows, width = host.shape
        taken = [*self.seconds, seconds]
        head = StatesHead(self.epoch, batch, (rows, width), dtype, taken)
        data = memoryview(host.view(torch.uint8).numpy().reshape(-1))  # type: ignore[arg-type]
        self._after.send(encode_message(head), data)

    def fail(self, batch: int, error: str) -> None:
        """Report to the next stage that a batch failed and has no states."""
        if self._after is not None:
            head = StatesHead(self.epoch, batch, (0, 0), "", [], error or "the stage before failed")
            self._after.send(encode_message(head), b"")

    def receive(self, batch: int, device: torch.device) -> Tensor:
        """Wait for the states of a batch [T, width]. Raises ValueError if the previous stage could
        not compute the batch."""
        assert self._before is not None
        began = time.perf_counter()
        while True:
            parts = self._before.take()
            assert parts is not None
            head = decode_message(parts[0])
            if not isinstance(head, StatesHead) or head.epoch != self.epoch or head.id < batch:
                continue
            self.waited, self.seconds = time.perf_counter() - began, head.seconds
            if head.error:
                raise ValueError(head.error)
            states = torch.frombuffer(bytearray(parts[1]), dtype=getattr(torch, head.dtype))
            return states.view(head.shape).to(device)


class IdsLink:
    """Sends sampled token ids from the rank that samples to the ranks of the first stage."""

    def __init__(self, epoch: int, inbox: InLink | None, receivers: Sequence[OutLink]) -> None:
        self.epoch, self._inbox, self._receivers = epoch, inbox, receivers
        self._last = SampledIds(epoch, -1, ints())

    def send(self, batch: int, tokens: Tensor | None) -> None:
        """Send a batch's sampled tokens [rows] to the ranks of the first stage; None: no
        samples."""
        if not self._receivers:
            return
        values = ints() if tokens is None else array("i", tokens.cpu().numpy().tobytes())
        frame = encode_message(SampledIds(self.epoch, batch, values))
        for receiver in self._receivers:
            receiver.send(frame)

    def of(self, batch: int, wait: bool) -> Ints:
        """Return the tokens of a batch. Without ``wait``: none if they have not arrived yet."""
        assert self._inbox is not None
        while self._last.id != batch:
            parts = self._inbox.take(None if wait else 0)
            if parts is None:
                break
            message = decode_message(parts[0])
            if isinstance(message, SampledIds) and message.epoch == self.epoch:
                self._last = message
        return self._last.tokens if self._last.id == batch else ints()


class RankForward:
    """Implements ``worker.forward.Forward`` around the forward of a rank.

    ``samples``: this rank samples. Other ranks return zeros, which are never used.
    """

    def __init__(self, inner: Forward, link: StatesLink, samples: bool) -> None:
        self.inner, self.link, self.samples = inner, link, samples
        self.batch = 0  # id of the current batch

    def hidden(self, inputs: Inputs, wanted: Int32Array) -> Tensor:
        if self.link.receives:
            states = self.link.receive(self.batch, inputs.tokens.device)
            count = inputs.tokens.shape[0]
            if states.shape[0] != count:
                raise ValueError(
                    f"batch {self.batch} has {count} tokens; the stage before sent "
                    f"{states.shape[0]}."
                )
            every = np.arange(count, dtype=np.int32)
            inputs = replace(inputs, embedded=Embedded(every, states))
        found: Tensor = self.inner.hidden(inputs, wanted)
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.inner.logits(hidden)
        return found

    def draw(self, logits: Tensor, samples: Sequence[Sample]) -> Drawing:
        if self.samples:
            return self.inner.draw(logits, samples)
        return drawn(torch.zeros(len(samples), dtype=torch.int32, device=logits.device), [])


class StageRunner:
    """Runner of a stage that is not the last. Uses the pool, reader and adapters of ``runner``."""

    def __init__(self, runner: ModelRunner, forward: RankForward, link: StatesLink) -> None:
        self.runner, self.forward, self.link = runner, forward, link
        self.drawn: Tensor | None = None

    @without_gradients
    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        """Compute the stage's layers and send the hidden states. The returned outputs are empty."""
        began, outputs = time.perf_counter(), [RowOutput() for _ in batch.rows]
        if batch.copies is not None:
            self.runner.pool.copy(batch.copies)
        if not batch.rows and (batch.moves or batch.copies):
            self.runner.reader.tables.drop(batch.dropped)
            return partial(StepResult, batch.id, [])
        inputs = self.runner.reader.read(batch, self.drawn)
        inputs = self.runner.adapters.applied(batch, inputs, outputs)
        every = np.arange(inputs.tokens.shape[0], dtype=np.int32)
        states = self.forward.hidden(inputs, every)
        self.link.send(batch.id, states, time.perf_counter() - began - self.link.waited)
        return partial(StepResult, batch.id, outputs)


Launch = Callable[[Batch, Masks], Finish]
