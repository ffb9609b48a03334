"""Native attention and sampling against torch: ``python -m benchmark.kernels.attention``.

Both sides of a case run in turns, and the ratio of a turn's two times is taken; the median of the
ratios is reported with its quartiles. Processor time counts, not the clock: cores may be shared.
With more than one thread it is the clock. Outputs are compared before anything is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median, quantiles

import numpy as np
import torch
from sgl_kernel import native, paged, rows
from sglang.ir.sampling import SamplingParams
from sglang.srt.attention.attention_protocol import Heads, Layout
from sglang.srt.attention.native_attention import NativeAttention
from sglang.srt.core.batch import Sample
from sglang.srt.logits import sampler

from benchmark.harness.command import command_parser

Q, KV, DIM = 12, 4, 64
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Case:
    name: str
    work: float  # billions of operations of one run; 0 if that says nothing
    ours: Callable[[], object]
    torch: Callable[[], object]


@dataclass(frozen=True)
class Shape:
    """Rows of ``new`` tokens after ``context`` ones, of which all rows share ``shared``."""

    rows: int
    context: int
    new: int
    shared: int = 0

    @property
    def name(self) -> str:
        text = f"{self.rows} x {self.new} behind {self.context}"
        return f"{text}, {self.shared} shared" if self.shared else text


SHAPES = [
    *(Shape(b, c, 1) for b in (1, 16, 64) for c in (128, 1024, 4096)),
    Shape(16, 0, 512),
    Shape(1, 0, 2048),
    Shape(64, 1056, 1, 1024),
    Shape(16, 1024, 32, 1024),
]
SMOKE = [Shape(2, 100, 1), Shape(2, 0, 40), Shape(4, 200, 1, 192)]


def attention_case(shape: Shape, dtype: str, threads: int) -> Case:
    random = np.random.default_rng(0)
    kind = DTYPES[dtype]
    length = shape.context + shape.new
    own = length - shape.shared
    slots = shape.shared + shape.rows * own
    page = random.permutation(slots).astype(np.int32)
    tables = [
        np.concatenate([page[: shape.shared], page[shape.shared + r * own :][:own]])
        for r in range(shape.rows)
    ]
    tokens = shape.rows * shape.new
    layout = Layout(
        np.full(shape.rows, shape.context, np.int32), np.full(shape.rows, shape.new, np.int32),
        np.arange(shape.rows + 1, dtype=np.int32) * length, np.concatenate(tables),
        np.tile(np.arange(shape.context, length, dtype=np.int32), shape.rows),
    )  # fmt: skip
    pools = [torch.randn(slots + 1, KV, DIM).to(kind) for _ in range(2)]
    for pool in pools:
        pool[-1] = 0
    qkv = torch.randn(tokens, (Q + 2 * KV) * DIM).to(kind).float()

    heads = paged.Heads(Q, KV, DIM, DIM**-0.5)
    kv = paged.KV(*(pool.clone() for pool in pools))
    none = torch.empty(length, 0)
    rotary = paged.Rotary(none, none)
    pass_ = paged.Pass(
        np.zeros(tokens, np.int32), layout.positions, layout.starts, layout.counts,
        layout.tables, layout.pages, 1,
    )  # fmt: skip

    def ours() -> torch.Tensor:
        paged.append(pass_, heads, rotary, qkv, kv, threads)
        out: torch.Tensor = paged.attend(pass_, heads, qkv, kv, threads)
        return out

    other = NativeAttention([pools[0]], [pools[1]], 1)
    other.plan(layout)
    q, k, v = (x.unflatten(-1, (-1, DIM)) for x in
               qkv.to(kind).split([Q * DIM, KV * DIM, KV * DIM], -1))  # fmt: skip
    known = Heads(0, Q, KV, DIM, DIM**-0.5)
    theirs = other.attend(known, q, k, v).float()
    difference = ((ours() - theirs).abs() / theirs.abs().amax(-1, keepdim=True)).max()
    assert difference <= TOLERANCE[dtype], f"{shape.name}: outputs differ by {difference:.1e}"
    seen = shape.context + (shape.new + 1) / 2
    work = 4e-9 * Q * DIM * tokens * seen
    return Case(f"{shape.name}, {dtype}", work, ours, lambda: other.attend(known, q, k, v))


def sampling_case(m: int, n: int, threads: int, **wishes: float) -> Case:
    random = np.random.default_rng(1)
    logits = torch.from_numpy((3 * random.normal(size=(m, n))).astype(np.float32))
    uniforms = random.random(m)
    params = SamplingParams(**wishes)  # type: ignore[arg-type]
    samples = [Sample(params, uniform=float(u)) for u in uniforms]
    ones = [1] * m
    records = rows.draws(
        [params.temperature] * m, [params.top_k] * m, [params.top_p] * m, [params.min_p] * m,
        uniforms.tolist(),
    )  # fmt: skip
    mine = rows.draw(logits, records, threads)
    theirs, _ = sampler.draw(logits, samples)
    same = int((mine == theirs).sum())
    assert same >= m - 1 - m // 50, f"{m - same} of {len(ones)} tokens differ"
    name = ", ".join(f"{key} {value}" for key, value in wishes.items()) or "as they are"
    return Case(
        f"draw {m} of {n}, {name}", 0.0, lambda: rows.draw(logits, records, threads),
        lambda: sampler.draw(logits, samples),
    )  # fmt: skip


def cases(threads: int, smoke: bool) -> Iterator[Case]:
    for shape in SMOKE if smoke else SHAPES:
        for dtype in DTYPES:
            yield attention_case(shape, dtype, threads)
    for m, n in ((3, 1000),) if smoke else ((64, 32000), (1, 128000)):
        for wishes in ({}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.9}):
            yield sampling_case(m, n, threads, **wishes)


def measure(case: Case, turns: int, clock: Callable[[], float], least: float = 0.01) -> str:
    """One line: times of both, and how many times as long torch takes."""

    def once(run: Callable[[], object]) -> float:
        begin, count = clock(), 0
        while clock() - begin < least or not count:
            run()
            count += 1
        return (clock() - begin) / count

    mine, theirs = zip(*((once(case.ours), once(case.torch)) for _ in range(turns)))
    ratios = sorted(b / a for a, b in zip(mine, theirs))
    low, _, high = quantiles(ratios, n=4) if turns > 1 else ratios * 3
    speed = f"{case.work / median(mine):.0f}" if case.work else ""
    return (
        f"| {case.name} | {1e3 * median(mine):.3f} | {1e3 * median(theirs):.3f} "
        f"| {median(ratios):.2f} | {low:.2f} - {high:.2f} | {speed} |"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("benchmark.kernels.attention", __doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="tiny cases, one turn")
    parser.add_argument("--only", default="", help="cases whose names hold this text")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    print(f"{native.isa()}, {options.threads} threads, {Q} heads over {KV} of {DIM} dimensions")
    print(
        "| case | ours, ms | torch, ms | ratio | quartiles | ours, Gop/s |\n"
        "|---|---|---|---|---|---|"
    )
    for case in cases(options.threads, options.smoke):
        if options.only in case.name:
            turns, least = (1, 0.0) if options.smoke else (options.turns, 0.01)
            print(measure(case, turns, clock, least), flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
