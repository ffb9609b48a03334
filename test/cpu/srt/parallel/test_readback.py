"""Readback, with a stream that computes on command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from sglang.srt.parallel.staging import Here, Readback, readback_of
from torch import Tensor


class Stream:
    """Passes and copies in one order; nothing happens until ``step``, or until someone waits."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []
        self.waits = 0

    def step(self) -> None:
        self.queue.pop(0)()

    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], None]]:
        hosts, done = [torch.full_like(tensor, -1) for tensor in tensors], []

        def work() -> None:
            for host, tensor in zip(hosts, tensors):
                host.copy_(tensor)
            done.append(True)

        def block() -> None:
            self.waits += 1
            while not done:
                self.step()

        self.queue.append(work)
        return hosts, block


def fill(tokens: torch.Tensor, value: int) -> None:
    tokens.fill_(value)


def test_waiting_for_a_pass_leaves_later_ones_queued() -> None:
    stream = Stream()
    readback, results, passes = Readback(stream), [], []
    for number in range(4):
        tokens = torch.zeros(3, dtype=torch.int64)
        stream.queue.append(partial(fill, tokens, 10 + number))
        passes.append(readback.fetch([tokens, tokens]))
        if number:
            # The pass before is awaited while this one is queued behind it.
            results.append([x.tolist() for x in passes[number - 1].wait()])
            assert len(stream.queue) == 2, "the newest pass and its copy"
    assert stream.waits == 3
    assert results == [[[10 + n] * 3] * 2 for n in range(3)]
    assert passes[3].wait()[0].tolist() == [13] * 3
    assert not stream.queue


def test_waiting_twice_gives_the_same() -> None:
    stream = Stream()
    fetched = Readback(stream).fetch([torch.arange(3)])
    assert fetched.wait()[0].tolist() == fetched.wait()[0].tolist() == [0, 1, 2]


def test_on_a_cpu_values_are_there() -> None:
    readback = readback_of(torch.device("cpu"))
    assert isinstance(readback.lane, Here)
    tensors = [torch.arange(4), torch.zeros(0)]
    assert readback.fetch(tensors).wait() == tensors


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_host_does_not_wait() -> None:
    device = torch.device("cuda")
    readback = readback_of(device)
    big = torch.randn(4096, 4096, device=device)
    for _ in range(50):
        big = big @ big * 1e-3
    early = readback.fetch([torch.arange(5, device=device)])
    for _ in range(2000):
        big = big @ big * 1e-3
    late = torch.cuda.Event()
    late.record()
    assert early.wait()[0].tolist() == [0, 1, 2, 3, 4]
    assert not late.query(), "waiting for a pass waited for what was queued after it"
