"""The executor of several ranks, by hand: two stages of two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.tiny_model import write_config
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, Row, RowOutput, Sample
from sglang.srt.core.device_errors import DeviceLost, lost_device
from sglang.srt.core.ints import ints
from sglang.srt.core.workers import Mask
from sglang.srt.ranks.ranks_executor import Ranks
from sglang.srt.worker.model_worker import ModelWorker

GREEDY = Sample(SamplingParams(temperature=0.0), top=2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def ranks(path: str) -> Iterator[Ranks]:
    executor = Ranks(config_of(path, tp_size=2, pp_size=2))
    yield executor
    children = [psutil.Process(child.process.pid) for child in executor.group._children]
    executor.close()
    executor.close()  # has no effect
    assert not [child for child in children if child.is_running()]
    assert not executor.group.directory.exists()


def config_of(path: str, **settings: Any) -> Config:
    base = {"device": "cpu", "max_total_tokens": 256, "load_format": "dummy", "threads": 1}
    return Config.of(model_path=path, **base, **settings)


def row(context: int, start: int, tokens: list[int], **more: Any) -> Row:
    pages = ints(range(context * 16, context * 16 + 16)) if not start else ints()
    return Row(context, start, ints(tokens), pages, 16 if start else 0, sample=GREEDY, **more)


def outputs(rows: list[RowOutput]) -> list[Any]:
    return [(one.token, pytest.approx(one.logprob, abs=1e-4)) for one in rows]


def test_batches_in_flight_give_the_outputs_of_one_worker(ranks: Ranks, path: str) -> None:
    """Several are submitted before the first result is taken; rows follow the batch before."""
    worker = ModelWorker(config_of(path))
    work = [
        Batch(10, [row(0, 0, [5, 6, 7]), row(1, 0, [9])]),
        Batch(11, [row(1, 1, [0], follows=1), row(0, 3, [0], follows=0)]),
        Batch(12, [row(2, 0, list(range(3, 15)))]),
        Batch(13, [row(0, 4, [8]), row(2, 12, [0], follows=0)]),
    ]
    for batch in work:
        ranks.submit(batch)
    for batch in work:
        result = ranks.result()
        assert result.id == batch.id
        assert len(result.stages) == 2
        assert min(result.stages) > 0
        assert outputs(result.rows) == [(one.token, one.logprob) for one in worker.run(batch).rows]


def test_a_batch_that_cannot_be_computed_ends_alone(ranks: Ranks) -> None:
    """The batch fails on the first stage; the next one fails too where a row follows it."""
    bad = Row(9, 0, ints([1]), ints([999]), sample=GREEDY)
    for batch in (
        Batch(20, [row(3, 0, [5, 6])]),
        Batch(21, [bad]),
        Batch(22, [row(4, 0, [0], follows=0)]),
        Batch(23, [row(3, 0, [5, 6])]),
    ):
        ranks.submit(batch)
    first = ranks.result()
    with pytest.raises(ValueError, match=r"batch 21 has a page outside \[0, 256\)"):
        ranks.result()
    with pytest.raises(ValueError, match="batch 22 follows a row"):
        ranks.result()
    assert outputs(ranks.result().rows) == [(one.token, one.logprob) for one in first.rows]


class OneToken:
    """A mask that allows token 7 alone."""

    def make(self) -> list[Mask]:
        words = bytearray(20)  # a vocabulary of 160 ids
        words[0] = 1 << 7
        return [Mask(bytes(words)), Mask(error="no mask")]


def test_masks_reach_the_rank_that_samples(ranks: Ranks) -> None:
    rows = [
        Row(5 + i, 0, ints([4]), ints(range(80 + 16 * i, 96 + 16 * i)),
            sample=Sample(SamplingParams(temperature=0.0), mask=i))
        for i in range(2)
    ]  # fmt: skip
    ranks.submit(Batch(30, rows), OneToken())
    first, second = ranks.result().rows
    assert first.token == 7
    assert "no mask" in second.error


def test_adapters_that_are_off_are_refused_once(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="adapters are off; start with --enable-lora"):
        ranks.load_adapter(1, str(tmp_path))
    ranks.unload_adapter(1)


def test_results_after_a_loss_say_so(path: str) -> None:
    executor = Ranks(config_of(path, pp_size=2))
    try:
        executor.submit(Batch(1, [row(0, 0, [5])]))
        executor.result()
        executor.group._children[1].kill()
        executor.submit(Batch(2, [row(1, 0, [5])]))
        for _ in range(2):
            with pytest.raises(DeviceLost, match=r"rank 1 .* ended by signal SIGKILL") as caught:
                executor.result()
            assert lost_device(caught.value) == executor.lost
        with pytest.raises(ValueError, match="the adapter was not loaded: rank 1"):
            executor.load_adapter(1, "none")
    finally:
        executor.close()
