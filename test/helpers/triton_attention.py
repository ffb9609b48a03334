"""Cases of the paged attention kernels, for any device that can run them.

Unused slots of the pools and every output are NaN before a launch, so that a read or a write at a
wrong address shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.seeds import LONG
from helpers.triton_place import Place
from sgl_kernel.triton import attention, reference
from torch import Tensor

# heads, kv_heads, head_dim
HEADS = ((4, 2, 64), (6, 2, 80), (3, 3, 96), (8, 1, 128), (2, 1, 256))


@dataclass
class Problem:
    """Rows with ``lengths`` tokens in all, the last ``counts`` of them new."""

    place: Place
    heads: tuple[int, int, int]
    lengths: list[int]
    counts: list[int]
    page_size: int
    shared: int = 0  # tokens that all rows have in common

    def __post_init__(self) -> None:
        place, (heads, kv, dim) = self.place, self.heads
        need = [-(-n // self.page_size) for n in self.lengths]
        common = self.shared // self.page_size
        total = sum(need) + 3
        order = torch.randperm(total, generator=place.generator).tolist()
        rows = [[order.pop() for _ in range(n)] for n in need]
        for row in rows[1:]:
            row[:common] = rows[0][:common]
        self.tables = place.ints(np.cumsum([0, *need]))
        self.pages = place.ints([page for row in rows for page in row])
        # One layer of a pool that holds two: the kernels must go by the strides.
        pools = [place.random(total * self.page_size, 2, kv, dim)[:, 1] for _ in range(2)]
        used = torch.zeros(total * self.page_size, dtype=torch.bool)
        for row, length in zip(rows, self.lengths):
            for p in range(length):
                used[row[p // self.page_size] * self.page_size + p % self.page_size] = True
        for pool in pools:
            pool[~used.to(place.device)] = float("nan")
        self.keys, self.values = pools
        tokens = sum(self.counts)
        self.q = place.random(tokens, heads + 1, dim)[:, 1:]
        self.starts = place.ints(np.array(self.lengths) - self.counts)
        self.firsts = place.ints(np.cumsum([0, *self.counts]))
        self.options: dict[str, Any] = {"scale": dim**-0.5, "page_size": self.page_size}

    @property
    def group(self) -> int:
        return self.heads[0] // self.heads[1]

    @property
    def out(self) -> Tensor:
        return torch.full_like(self.q, float("nan"))

    def sinks(self, there: bool = True) -> Tensor | None:
        """Sinks as large as scores, so that they weigh."""
        drawn = torch.randn(self.heads[0], generator=self.place.generator)
        return drawn.to(self.place.device) if there else None

    def tiles(self, block: int) -> Tensor:
        return self.place.ints(attention.plan_tiles(np.array(self.counts), self.group, block))

    def work(self, chunk: int, **options: Any) -> attention.Work:
        ends = (self.starts + 1).cpu().numpy()
        return attention.Work(**sent(self.place, attention.plan_work(ends, chunk, **options)))

    def decode(self, chunk: int, **options: Any) -> Tensor:
        return attention.decode(
            self.q, self.keys, self.values, self.pages, self.tables, self.starts + 1,
            self.work(chunk), out=self.out, **self.options, **options,
        )  # fmt: skip

    def extend(self, block: int, **options: Any) -> Tensor:
        return attention.extend(
            self.q, self.keys, self.values, self.pages, self.tables, self.starts, self.firsts,
            self.tiles(block), block=block, out=self.out, **self.options, **options,
        )  # fmt: skip

    def truth(self, **options: Any) -> Tensor:
        return reference.attention(
            self.q, self.keys, self.values, self.pages, self.tables, self.starts, self.firsts,
            **self.options, **options,
        )  # fmt: skip


def sent(place: Place, fields: dict[str, Any]) -> dict[str, Any]:
    """A plan's arrays as tensors."""
    return {name: place.ints(x) if isinstance(x, np.ndarray) else x for name, x in fields.items()}


def lengths(place: Place, rows: int, longest: int) -> list[int]:
    return [place.pick(1, longest) for _ in range(rows)]


def decode(place: Place) -> None:
    longest = 3000 if place.large else 150
    for i, heads in enumerate(HEADS):
        page_size, rows = (1, 3, 16, 1, 4)[i], 9 if place.large else 2
        sizes = [*lengths(place, rows, longest), 1]
        problem = Problem(place, heads, sizes, [1] * len(sizes), page_size)
        chunk = (1 << 20, 32, 100, 64, longest)[i]
        place.close(problem.decode(chunk), problem.truth())


def decode_options(place: Place) -> None:
    """A window, a soft cap, sinks, and all of them, whole and split."""
    sizes = [*lengths(place, 3 if place.large else 1, 900 if place.large else 100), 5]
    for window, soft_cap, sinks, chunk in (
        (0, 2.0, True, 4096), (33, 0.0, False, 4096), (40, 1.5, True, 24)
    ):  # fmt: skip
        problem = Problem(place, (4, 2, 32), sizes, [1] * len(sizes), 2)
        options = {"window": window, "soft_cap": soft_cap, "sinks": problem.sinks(sinks)}
        place.close(problem.decode(chunk, **options), problem.truth(**options))


def float8(place: Place) -> None:
    """Pools of e4m3 are read as the numbers that they hold."""
    for counts in ([1, 1], [1, 20]):
        problem = Problem(place, (4, 2, 32), [70, 33], counts, 2)
        problem.keys, problem.values = (
            pool.to(torch.float8_e4m3fn) for pool in (problem.keys, problem.values)
        )
        one = max(counts) == 1
        place.close(problem.decode(32) if one else problem.extend(16), problem.truth())


def decode_padding(place: Place) -> None:
    """A row of length 0 gets zeros."""
    problem = Problem(place, (4, 2, 32), [70, 4], [1, 1], 1)
    problem.starts[0] = -1
    for chunk in (64, 2):
        out = problem.decode(chunk)
        assert not out[0].any()
        assert out[1].isfinite().all()


def decode_bits(place: Place) -> None:
    """A row's bits do not depend on the rows beside it."""
    sizes = [*lengths(place, 3, 700 if place.large else 130), 77]
    problem = Problem(place, (4, 2, 64), sizes, [1] * 4, 1)
    together = problem.decode(32)
    for r in range(4):
        alone = attention.decode(
            problem.q[r : r + 1], problem.keys, problem.values, problem.pages,
            problem.tables[r : r + 2], problem.starts[r : r + 1] + 1,
            attention.Work(**sent(place, attention.plan_work(np.array(sizes[r : r + 1]), 32))),
            **problem.options,
        )  # fmt: skip
        assert torch.equal(alone[0], together[r])


def extend(place: Place) -> None:
    longest = 700 if place.large else 40
    for i, heads in enumerate(HEADS):
        counts = [place.pick(1, longest) for _ in range(2)] + [1]
        sizes = [count + place.pick(0, longest) for count in counts]
        problem = Problem(place, heads, sizes, counts, (3, 1, 16, 1, 2)[i])
        group, dim = problem.group, heads[2]
        block = attention.choose_block(group, dim, np.array(counts)) if place.large else 16 << i % 2
        place.close(problem.extend(block), problem.truth())


def extend_options(place: Place) -> None:
    many = 300 if place.large else 23
    for window, soft_cap, sinks in ((0, 2.0, True), (9, 0.0, False), (many, 1.5, True)):
        problem = Problem(place, (6, 2, 32), [many + 40, 5, many], [many, 5, 2], 2)
        options = {"window": window, "soft_cap": soft_cap, "sinks": problem.sinks(sinks)}
        place.close(problem.extend(32 if place.small else 64, **options), problem.truth(**options))


def extend_tree(place: Place) -> None:
    """Drafts that form a tree: every node sees the prefix, its ancestors and itself."""
    counts = [7, 40, 1]
    for window in (0, 12):
        problem = Problem(place, (4, 2, 32), [60, 40, 30], counts, 1)
        mask = torch.zeros(sum(counts), 2, dtype=torch.int64)
        flat = 0
        for count in counts:
            for i in range(count):
                parent = place.pick(-1, i - 1) if i else -1
                mask[flat + i] = mask[flat + parent] if parent >= 0 else 0
                mask[flat + i, i // 32] |= 1 << i % 32
            flat += count
        words = place.ints(mask.numpy().astype(np.uint32).view(np.int32))
        out = problem.extend(16, mask=words, window=window)
        place.close(out, problem.truth(mask=words, window=window))


def extend_bits(place: Place) -> None:
    """A query's bits do not depend on how its row was cut, nor on the rows beside it."""
    if place.small:  # the interpreter multiplies by NumPy
        with mock.patch.object(np, "matmul", by_rows):
            compare_bits(place)
    else:
        compare_bits(place)


def compare_bits(place: Place) -> None:
    total = 500 if place.large else 90
    for window in (0, 21):
        whole = Problem(place, (4, 2, 32), [total, 7], [total, 7], 1)
        out = whole.extend(64 if place.large else 32, window=window)
        for first in (0, 13, total - 1):
            count = total - first
            part = attention.extend(
                whole.q[first:total], whole.keys, whole.values, whole.pages, whole.tables[:2],
                place.ints([first]), place.ints([0, count]),
                place.ints(
                    attention.plan_tiles(np.array([count]), 2, 64 if place.large else 32)
                ),
                block=64 if place.large else 32, window=window, **whole.options,
            )  # fmt: skip
            assert torch.equal(part, out[first:total])


def by_rows(a: Any, b: Any, dtype: Any = None) -> Any:
    """Product of two NumPy matrices, one row at a time. In NumPy's own a row's bits may depend on
    where in the matrix it is."""
    return np.stack([np.dot(row, b) for row in a]).astype(dtype)


def cascade(place: Place) -> None:
    """Groups of rows, rows of no group, and no group at all."""
    shared = 1200 if place.large else 48
    sizes = [shared + place.pick(1, shared) for _ in range(4)]
    problem = Problem(place, (4, 2, 64), sizes, [1] * 4, 4, shared)
    one, two = [([0, 2, 3], shared)], [([0, 1], shared), ([2, 3], shared - 5)]
    whole, cut = (4096, None), (32, problem.sinks())
    cases = [(groups, how, part) for groups in (one, two, []) for how in (whole, cut)
             for part in (attention.PART, 8)]  # fmt: skip
    if not (place.large or LONG):  # each pair of two of the three, but without groups once
        cases = [(one, whole, 8), (one, cut, attention.PART), (two, cut, 8),
                 (two, whole, attention.PART), ([], cut, 8)]  # fmt: skip
    for groups, (chunk, sinks), part in cases:
        with mock.patch.object(attention, "PART", part):
            out = cascaded(problem, groups, chunk, sinks)
        place.close(out, problem.truth(sinks=sinks))


def cascaded(
    problem: Problem, groups: list[tuple[list[int], int]], chunk: int, sinks: Tensor | None
) -> Tensor:
    place, (heads, kv, dim) = problem.place, problem.heads
    fields = attention.plan_shared(
        groups, problem.tables.cpu().numpy(), heads // kv, dim, kv, 132
    )  # fmt: skip
    lows = np.zeros(len(problem.lengths), dtype=np.int32)
    for rows, length in groups:
        lows[rows] = length
    return attention.decode(
        problem.q, problem.keys, problem.values, problem.pages, problem.tables, problem.starts + 1,
        problem.work(chunk, lows=lows, extra=fields["splits"]), sinks=sinks, out=problem.out,
        shared=attention.Shared(**sent(place, fields)), **problem.options,
    )  # fmt: skip


def skewed(place: Place) -> None:
    """One long row among short ones, in the buffers of a captured pass: padded to fixed sizes."""
    many, longest = (40, 20_000) if place.large else (5, 300)
    sizes = [*lengths(place, many, 20), longest]
    problem = Problem(place, (4, 2, 32), sizes, [1] * len(sizes), 2)
    programs = 8
    with mock.patch.object(attention, "PART", 32):
        chunk = attention.choose_chunk(sum(sizes), programs)
    out = attention.decode(
        problem.q, problem.keys, problem.values, problem.pages, problem.tables, problem.starts + 1,
        problem.work(chunk, room=len(sizes) + programs), out=problem.out, **problem.options,
    )  # fmt: skip
    place.close(out, problem.truth())


def plans(place: Place) -> None:
    """Tiles cover every query once, items every key once, none more than its share."""
    for _ in range(20):
        counts = np.array([place.pick(0, 40) for _ in range(place.pick(1, 6))], dtype=np.int32)
        tiles = attention.plan_tiles(counts, 3, 16).tolist()
        assert sorted(map(tuple, tiles)) == [
            (r, t) for r, n in enumerate(counts) for t in range(-(-3 * int(n) // 16))
        ]
        longest = place.pick(0, 1 << 20)
        splits = attention.choose_splits(place.pick(0, 300), 8, longest, 132)
        assert splits in (1, 2, 4, 8, 16, 32, 64)
        assert splits == 1 or splits * attention.PART <= longest
        works(place)
    assert attention.choose_splits(1, 8, 1 << 17, 132) == 64
    assert attention.choose_splits(256, 8, 1 << 17, 132) == 1
    # 140 k keys and 33 programs: before, one of a row of 100 k read all of it.
    fair = attention.choose_chunk(100_000 + 40 * 1000, attention.fair_programs(8, 132))
    items = attention.plan_work(np.array([100_000] + [1000] * 40), fair)["items"]
    assert int((items[:, 2] - items[:, 1]).max()) == fair == 4288


def works(place: Place) -> None:
    rows, programs = place.pick(1, 40), place.pick(1, 300)
    ends = np.array([place.pick(0, place.pick(1, 50_000)) for _ in range(rows)])
    lows = np.array([place.pick(0, int(n)) * place.pick(0, 1) for n in ends])
    keys, extra = int((ends - lows).sum()), place.pick(1, 3)
    chunk = attention.choose_chunk(keys, programs)
    assert chunk <= max(attention.PART, -(-keys // programs) + attention.STEP - 1)
    plan = attention.plan_work(ends, chunk, lows, extra)
    fair, room = attention.choose_chunk(int(ends.sum()), programs), rows + programs
    padded = attention.plan_work(ends, fair, room=room)
    assert len(padded["items"]) == padded["parts"] == room
    seen: dict[int, list[tuple[int, int, int]]] = {}
    for row, low, high, part in plan["items"].tolist():
        assert high - low <= chunk
        seen.setdefault(row, []).append((low, high, part))
    taken = []
    for row, (low, end) in enumerate(zip(lows.tolist(), ends.tolist())):
        parts = sorted(seen[row])
        assert [a for a, _, _ in parts] == [low, *(b for _, b, _ in parts[:-1])]
        assert parts[-1][1] == end
        alone = len(parts) == 1 and not low
        assert (parts[0][2] < 0) == alone
        taken += [] if alone else [part for _, _, part in parts]
        taken += [plan["firsts"][row + 1] - 1 - i for i in range(extra)] if low else []
    assert sorted(taken) == list(range(plan["parts"]))


def errors(place: Place) -> None:
    good = Problem(place, (4, 2, 32), [9, 5], [1, 1], 1)
    for message, field, value in (
        ("keys has shape", "keys", good.keys[:, :, :16]),
        ("values is torch", "values", good.values.double()),
        ("tables has 1 entries", "tables", good.tables[:1]),
        ("pages is torch.int64", "pages", good.pages.long()),
        ("3 query heads cannot share 2", "q", good.q[:, :3]),
        ("q has stride 2", "q", place.random(2, 4, 64)[:, :, ::2]),
    ):
        bad = Problem(place, (4, 2, 32), [9, 5], [1, 1], 1)
        setattr(bad, field, value)
        with pytest.raises(ValueError, match=message):
            attention.decode(
                bad.q, bad.keys, bad.values, bad.pages, bad.tables, bad.starts + 1, bad.work(64),
                **bad.options,
            )  # fmt: skip
    with pytest.raises(ValueError, match=r"work.items has shape \[2, 2\]; \[\*, 4\] is needed"):
        attention.decode(
            good.q, good.keys, good.values, good.pages, good.tables, good.starts + 1,
            replace(good.work(64), items=good.tiles(16)), **good.options,
        )  # fmt: skip
    with pytest.raises(ValueError, match="block is 48"):
        good.extend(48)


CASES = (
    decode, decode_options, float8, decode_padding, decode_bits, extend, extend_options,
    extend_tree, extend_bits, cascade, skewed, plans, errors,
)  # fmt: skip
