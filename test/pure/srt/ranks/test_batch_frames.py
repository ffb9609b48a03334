"""Batches in columns: all that a worker reads comes back, in few bytes."""

from __future__ import annotations

import random
from typing import Any

from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import LOOSE, WHOLE, Batch, PageMoves, Row, RowScore, Sample, TokenCopies
from sglang.srt.core.ints import ints
from sglang.srt.ranks.batch_frames import batch_of, columns_of
from sglang.srt.ranks.rank_messages import PassPlan, decode_message, encode_message


def over_the_wire(batch: Batch) -> Batch:
    message = decode_message(encode_message(PassPlan(1, columns_of(batch))))
    assert isinstance(message, PassPlan)
    return batch_of(message.columns)


def random_row(r: random.Random) -> Row:
    def few(most: int) -> Any:
        return ints(r.randrange(1 << 20) for _ in range(r.randint(0, most)))

    params = SamplingParams(
        temperature=r.choice([0.0, 0.5, 1.0]), top_k=r.choice([-1, 5]),
        logit_bias=r.choice([{}, {3: 1.5}]), min_p=r.choice([0.0, 0.1]),
    )  # fmt: skip
    more: dict[str, Any] = {}
    if r.random() < 0.2:
        more = r.choice([
            {"gap": (1, 2)}, {"score": RowScore(0, ints([1]))}, {"probe": (1, 2)}, {"pool": 0},
            {"checks": [Sample(params)]}, {"adapter": 2}, {"tip_top": 3}, {"places": ints([1] * 3)},
            {"positions": ints([7])}, {"packed": WHOLE}, {"context": LOOSE},
        ])  # fmt: skip
    sample = None
    if r.random() < 0.8:
        sample = Sample(params, r.choice([0.0, r.random()]))
        if r.random() < 0.2:
            sample = r.choice([
                sample.after(4), sample.with_mask(b"1234"), Sample(params, forbidden=(1,)),
                Sample(params, mask=0), Sample(params, top=2),
            ])  # fmt: skip
    context = more.pop("context", r.randrange(1 << r.choice([30, 62])))
    return Row(
        context, r.randrange(1 << 20), ints([r.randrange(9)]) + few(3),
        few(4), r.randrange(9), follows=r.choice([-1, -1, 3]), sample=sample, **more,
    )  # fmt: skip


def test_random_batches_come_back() -> None:
    r = random.Random(3)
    for number in range(300):
        rows = [random_row(r) for _ in range(r.randint(0, 8))]
        moves = r.choice([None, PageMoves(stores=ints([1]), stored=ints([2]))])
        copies = r.choice([None, TokenCopies(ints([1, 2]), ints([4, 3]))])
        dropped = [r.randrange(99) for _ in range(r.randint(0, 3))]
        batch = Batch(number, rows, dropped, moves, copies)
        assert over_the_wire(batch) == batch


def test_what_no_sampler_reads_stays_behind() -> None:
    params = SamplingParams(temperature=0.5, stop=("end",), seed=4, max_new_tokens=9)
    (row,) = over_the_wire(Batch(0, [Row(1, 0, ints([1]), ints([2]), sample=Sample(params))])).rows
    assert row.sample == Sample(SamplingParams(temperature=0.5))


def test_a_decode_batch_of_64_rows_takes_at_most_2_kb() -> None:
    rows = [
        Row(10_000 + i, 3000 + i, ints([90_000 + i]), ints([70_000 + i] if i % 16 == 0 else []),
            kept=3000 + i, sample=Sample(SamplingParams(temperature=0.8, seed=i), 0.1 + i / 99))
        for i in range(64)
    ]  # fmt: skip
    assert len(encode_message(PassPlan(1 << 47, columns_of(Batch(9, rows))))) <= 2048
