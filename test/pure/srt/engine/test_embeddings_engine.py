"""Embeddings in the engine, over a fake worker whose hidden states are whole numbers."""

from __future__ import annotations

from array import array

import pytest
from helpers.desk import Desk
from helpers.fake_worker import FakeWorker, hidden_state
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Embed, Fill, Open
from sglang.srt.core.segments import Segment
from sglang.srt.core.workers import NO_MASKS, Masks

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def wanted(prompt: list[int], pooling: str) -> list[float]:
    states = [hidden_state(prompt[: i + 1]) for i in range(len(prompt))]
    chosen = states if pooling == "mean" else states[-1:]
    return [sum(column) / len(chosen) for column in zip(*chosen)]


def found(desk: Desk, request: int) -> list[float]:
    vector = array("f")
    vector.frombytes(desk.done(request).embedding)
    return vector.tolist()


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("chunk", [-1, 3, 1])
@pytest.mark.parametrize("page_size", [1, 4])
def test_whole_and_chunked(pooling: str, chunk: int, page_size: int) -> None:
    desk = Desk(page_size=page_size, chunked_prefill_size=chunk)
    one = desk.advance(desk.open(PROMPT), Embed(pooling))
    two = desk.advance(desk.open(PROMPT[:7]), Embed(pooling))
    desk.run()
    assert found(desk, one) == pytest.approx(wanted(PROMPT, pooling))
    assert found(desk, two) == pytest.approx(wanted(PROMPT[:7], pooling))
    assert desk.done(one).reason == "done"
    desk.finish()


def test_the_last_state_reuses_the_cache_and_the_mean_does_not() -> None:
    desk = Desk()
    desk.advance(desk.open(PROMPT), Fill())
    desk.run()
    last = desk.advance(desk.open(PROMPT), Embed("last"))
    desk.run()
    assert desk.done(last).stats.cached_tokens == len(PROMPT) - 1
    before = desk.worker.tokens
    mean = desk.advance(desk.open(PROMPT), Embed("mean"))
    desk.run()
    assert desk.done(mean).stats.cached_tokens == 0
    assert desk.worker.tokens - before == len(PROMPT)
    assert found(desk, last) == pytest.approx(wanted(PROMPT, "last"))
    assert found(desk, mean) == pytest.approx(wanted(PROMPT, "mean"))
    desk.finish()


@pytest.mark.parametrize("kept", [True, False], ids=["KV kept", "KV lost"])
def test_a_retracted_mean_goes_on_where_it_was(kept: bool) -> None:
    """Each token counts once, whether its KV is found again or is computed again."""
    desk = Desk(chunked_prefill_size=4)
    desk.ask([50, 51], Embed("last"))  # so that the chunks lie elsewhere the second time
    request = desk.advance(desk.open(PROMPT), Embed("mean"))
    desk.step()
    desk.step()
    engine = desk.engine
    (running,) = engine.running.values()
    assert running.outputs.summed == 6
    engine.planner.retract([running])
    if not kept:
        engine.store.flush()
    before = desk.worker.tokens
    desk.run()
    assert desk.worker.tokens - before == (4 if kept else 10)
    assert found(desk, request) == pytest.approx(wanted(PROMPT, "mean"))
    desk.finish()


def test_texts_side_by_side_have_no_mean() -> None:
    desk = Desk()
    segments = (Segment(3, 3), Segment(5, 3), Segment(8, 8))
    desk.send(Open(1000, ints(PROMPT).tobytes(), "", segments))
    mean = desk.advance(1000, Embed("mean"))
    assert "side by side" in desk.failed(mean).message


@pytest.mark.parametrize(
    ("prompt", "pooling", "message"),
    [([], "last", "empty"), (PROMPT, "max", "use one of last, mean"), ([5000], "mean", "5000")],
)
def test_what_cannot_be_pooled_is_refused(prompt: list[int], pooling: str, message: str) -> None:
    desk = Desk()
    request = desk.advance(desk.open(prompt), Embed(pooling))
    assert desk.failed(request).code == "invalid"
    assert message in desk.failed(request).message
    desk.finish()


class Broken(FakeWorker):
    """Fails every row that is to be pooled."""

    def run(self, batch: Batch, masks: Masks = NO_MASKS) -> StepResult:
        result = super().run(batch, masks)
        for row, output in zip(batch.rows, result.rows):
            output.error = "not finite" if row.pool >= 0 else ""
        return result


def test_a_row_that_fails_fails_its_request_alone() -> None:
    desk = Desk(worker=Broken(1))
    bad = desk.advance(desk.open(PROMPT), Embed("mean"))
    good = desk.advance(desk.open(PROMPT))
    desk.run()
    assert desk.failed(bad).message == "not finite"
    assert desk.done(good).reason == "length"
    desk.finish()
