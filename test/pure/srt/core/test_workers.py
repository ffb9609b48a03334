"""The contract between engine and workers: real methods, and batches that are data."""

from __future__ import annotations

import inspect
from array import array
from typing import Any

import pytest
from helpers.desk import Desk, generate
from helpers.either import Either
from helpers.fake_worker import TOKEN_BYTES, FakeWorker, fake_info
from helpers.text_worker import TextWorker
from helpers.toy_grammar import ToyGrammars
from helpers.wired import Wired, decode_batch, decode_result, encode
from sglang.ir.constraint import Constraint
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import ScheduleConfig
from sglang.srt.core.batch import (
    Batch,
    Drawn,
    Piece,
    Row,
    RowOutput,
    RowScore,
    Sample,
    StepResult,
)
from sglang.srt.core.ints import from_wire, ints
from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.core.messages import Generate
from sglang.srt.core.messages import Score as ScoreGoal
from sglang.srt.core.request import RequestSpec
from sglang.srt.core.workers import NO_MASKS, Masks, Worker
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline

PENALISED = SamplingParams(repetition_penalty=1.5, logit_bias={3: -1.0})
MEDIUM = MediaSpan(1, 2, b"k" * 16, "image", (1, 3), b"rgb")
SAMPLE = Sample(PENALISED, 0.25, ints([7]), ints([1, 2]), (96,), b"\xff" * 4, 3, True)
ROWS = {
    "a prompt": Row(1, 0, ints([5, 6, 7]), ints([3, 2, 1])),
    "a decode step": Row(2, 4, ints([0]), ints([9]), follows=3, sample=SAMPLE),
    "drafts": Row(3, 4, ints([1, 2]), ints([9]), sample=Sample(PENALISED, mask=1),
                  checks=[Sample(PENALISED, mask=0)]),
    "scores": Row(4, 0, ints([1, 2]), ints([4]), score=RowScore(0, ints([2, 3]), 2, (5,))),
    "a distribution": Row(5, 0, ints([1]), ints([4]), tip_top=4, probe=(8,)),
    "an adapter": Row(6, 0, ints([1]), ints([4]), adapter=2),
    "embeddings": Row(7, 0, ints([1]), ints([4]), pool=0, every=True),
    "an image": Row(8, 0, ints([1, 9, 9]), ints([4]), pieces=[Piece(MEDIUM, 1, 0, 2)],
                    places=ints(range(9))),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_batch_is_data(name: str) -> None:
    batch = Batch(12, [ROWS[name], Row(0, 0, ints([1]), ints([0]))])
    assert encode(decode_batch(encode(batch))) == encode(batch)
    assert repr(decode_batch(encode(batch)).rows[0]).replace("[]", "()") == repr(
        ROWS[name]
    ).replace("[]", "()")


def test_outputs_are_data() -> None:
    out = RowOutput(
        4, -0.5, [(4, -0.5)], [-1.0], scores=[-2.0], score_tops=[[(1, -2.0)]],
        score_probes=[[-3.0]], checks=[Drawn(3)], pooled=array("d", [1.5]), unseen=[b"k" * 16],
    )  # fmt: skip
    result = StepResult(9, [out, RowOutput(error="why", postponed=True)], 1, 2)
    assert decode_result(encode(result)) == result


def test_a_batch_cannot_hold_a_callable() -> None:
    sample = Sample(PENALISED, mask=lambda: b"")  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="function cannot be sent; only arrays can"):
        encode(Batch(1, [Row(0, 0, ints([1]), ints([0]), sample=sample)]))


@pytest.mark.parametrize(("code", "data"), [(ord("i"), b"123"), (ord("?"), b""), (-1, b"")])
def test_a_broken_array_is_refused(code: int, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_wire(code, memoryview(data))


@pytest.mark.slow
def test_real_and_fake_workers_have_the_methods_of_the_contract() -> None:
    worker = pytest.importorskip("sglang.srt.worker.model_worker")
    names = [name for name, member in vars(Worker).items() if inspect.isfunction(member)]
    names = [name for name in names if not name.startswith("_")]
    assert names == ["launch", "load_adapter", "unload_adapter"]
    for kind in (worker.ModelWorker, FakeWorker, TextWorker, Wired):
        for name in names:
            wanted = inspect.signature(getattr(Worker, name)).parameters
            found = inspect.signature(getattr(kind, name)).parameters
            assert list(found) == list(wanted), f"{kind.__name__}.{name}"


def test_an_executor_without_depth_is_refused() -> None:
    executor = Inline(FakeWorker(1), 0)
    with pytest.raises(ValueError, match="depth is 0; it must be at least 1"):
        EngineCore(executor, fake_info(64, 1), ScheduleConfig(), TOKEN_BYTES)


class Spy(FakeWorker):
    """Checks that each batch is afterwards what it was before."""

    def run(self, batch: Batch, masks: Masks = NO_MASKS) -> StepResult:
        before = encode(batch)
        result = super().run(batch, masks)
        assert encode(batch) == before
        return result


@pytest.mark.parametrize("depth", [1, 2])
def test_a_worker_behind_a_wire_computes_the_same(depth: int) -> None:
    goals: list[Any] = [
        generate(9, frequency_penalty=0.5, repetition_penalty=1.5),
        generate(9, constraint=Constraint("regex", "5"), ignore_eos=False, top=2),
        generate(9, temperature=1.0, seed=4, speculation="ngram", probe=(3,)),
        ScoreGoal(1, top=2),
    ]
    texts = []
    for wire in (False, True):
        desk = Desk(grammars=ToyGrammars(0), depth=depth)
        worker = Spy(1)
        executor = Either(worker) if depth == 2 else Inline(worker)
        executor.worker = Wired(worker) if wire else worker
        desk.engine.executor = executor
        asked = [desk.ask([3, 1, 4, 1, 5, 3, 1, 4], goal) for goal in goals]
        desk.run()
        ends = [desk.done(q) for q in asked]
        for end in ends:
            end.stats.queue_seconds = end.stats.first_token_seconds = 0.0
            end.stats.miss = None
        texts.append(([desk.tokens(q) for q in asked], ends, desk.prompt(asked[-1])))
        desk.finish()
    assert texts[0] == texts[1]


def sent_by(context: int, tokens: int, page_size: int) -> list[int]:
    """Bytes of each batch of 4 requests with contexts of ``context`` tokens."""
    desk = Desk(4 * (context + tokens + page_size), page_size, max_running_requests=4)
    wired = Wired(desk.worker)
    desk.engine.executor = Inline(wired)
    for first in range(4):
        desk.ask([first, *([7] * (context - 1))], generate(tokens, speculation="off"))
    desk.run()
    desk.finish()
    return wired.sent


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_decode_step_sends_changes_only(page_size: int) -> None:
    short, long = (sent_by(context, 20, page_size) for context in (64, 2048))
    assert max(long) > 4 * 2048, "a prompt is sent"
    short, long = short[-15:], long[-15:]
    assert max(short) <= 4 * 480
    assert max(long) <= max(short) + 4 * 8, "only positions are longer numbers"


def test_constraint_and_stops_stay_with_the_engine() -> None:
    """Both may be large, and only the engine reads them."""
    stops = tuple(f"{number:04d}" * 64 for number in range(16))
    goal = Generate(
        SamplingParams(
            constraint=Constraint("regex", "a{9}" * 1000), stop=stops, stop_regex=("b{9}",), top_k=7
        )
    )
    spec = RequestSpec(goal, 3)
    assert spec.sampling == SamplingParams(top_k=7)
    sent, requested = (
        len(encode(Batch(1, [Row(1, 3, ints([5]), ints([]), sample=Sample(params))])))
        for params in (spec.sampling, goal.sampling)
    )
    assert sent < 600 < requested
    plain = Generate(SamplingParams(temperature=0.5))
    assert RequestSpec(plain, 3).sampling is plain.sampling
    assert RequestSpec(ScoreGoal(1), 3).sampling is None


def test_page_tables_of_ended_requests_are_dropped() -> None:
    desk = Desk()
    for number in range(20):
        desk.ask([number, 1, 2], generate(3))
        desk.run()
    assert len(desk.worker.tables.known) == 1, "of the last one, until the next pass"
