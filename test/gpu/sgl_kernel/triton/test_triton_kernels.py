"""The Triton kernels on a GPU, in bfloat16 and float32, against float64; a few seeds of random odd
shapes each."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
if find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

from helpers import triton_attention, triton_layers, triton_sampling, triton_scaled
from helpers.triton_place import Place

CASES = [
    *triton_attention.CASES, *triton_layers.CASES, *triton_sampling.CASES, *triton_scaled.CASES,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.__module__[15:]}.{c.__name__}")
def test_against_float64(case: Callable[[Place], None], dtype: torch.dtype, seed: int) -> None:
    case(Place("cuda", dtype, large=True, seed=seed))


def test_launches_are_captured_by_a_graph() -> None:
    """Decode reads lengths and work on the device: a replay computes what they say by then."""
    problem = triton_attention.Problem(
        Place("cuda", torch.bfloat16, large=True), (8, 2, 128), [900, 40, 7], [1, 1, 1], 16
    )
    attention, options = triton_attention.attention, problem.options | {"out": problem.out}

    def plan(lengths: torch.Tensor) -> dict[str, Any]:
        fields = attention.plan_work(lengths.cpu().numpy(), 128, room=20)
        return triton_attention.sent(problem.place, fields)

    def decode() -> torch.Tensor:
        return attention.decode(
            problem.q, problem.keys, problem.values, problem.pages, problem.tables, ends, work,
            **options,
        )  # fmt: skip

    ends = torch.ones_like(problem.starts)
    work = attention.Work(**plan(ends))
    decode()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode()
    ends.copy_(problem.starts + 1)
    fields = plan(ends)
    work.items.copy_(fields["items"])
    work.firsts.copy_(fields["firsts"])
    graph.replay()
    problem.place.close(out, problem.truth())
