"""Products on a tape that write what the next product reads: the bits of products one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sgl_kernel import native, packed
from sgl_kernel.tape import Pass, Tape

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")


@pytest.fixture(params=native.isas())
def isa(request):
    native.choose(request.param)
    yield request.param
    native.choose()


def states(tape: Tape, tokens: int = 37) -> torch.Tensor:
    """The tape's result for the first ``tokens`` tokens of its table."""
    ids, zeros = np.arange(tokens, dtype=np.int32), np.zeros(tokens, np.int32)
    count = np.array([tokens], np.int32)
    work = Pass(ids, zeros, zeros[:1], count, zeros[:2], zeros[:1], 16)
    return torch.from_numpy(tape.run(work, ids, threads=2))


@pytest.mark.parametrize("format", ["f32", "bf16", "w8a8", "w8", "w4"])
@pytest.mark.parametrize("inner", [64, 40, 192])
def test_a_product_behind_a_gate_has_the_bits_of_two_products(isa, format, inner):
    torch.manual_seed(inner)
    table = packed.pack(torch.randn(37, 64), "bf16")
    up = packed.pack(torch.randn(2 * inner, 64), format, paired=True)
    down, last = (packed.pack(torch.randn(64, n), format) for n in (inner, 64))
    gain, bias = torch.rand(64) + 0.5, torch.randn(inner)
    bias = torch.cat([bias, bias])
    tape = Tape()
    x = tape.embed(table)
    tape.linear(tape.linear(x, up, gain=gain, bias=bias), down, into=x, add=True)
    tape.linear(tape.linear(x, last), last)  # three in a row: one of them is handed over
    y = table.rows(torch.arange(37))
    hidden = packed.linear(y, up, gain=gain, bias=bias)
    y = packed.linear(hidden, down, out=y, add=True)
    wanted = packed.linear(packed.linear(y, last), last)
    assert torch.equal(states(tape), wanted)
    assert torch.equal(states(tape), wanted)  # memory is in use already


def test_what_is_read_twice_is_not_handed_over(isa):
    torch.manual_seed(1)
    table, a, b = (packed.pack(torch.randn(64, 64), "bf16") for _ in range(3))
    tape = Tape()
    middle = tape.linear(tape.embed(table), a)
    out = tape.linear(middle, b)
    tape.linear(middle, a, into=out, add=True)
    y = packed.linear(table.rows(torch.arange(37)), a)
    wanted = packed.linear(y, a, out=packed.linear(y, b), add=True)
    assert torch.equal(states(tape), wanted)


def test_a_result_is_not_handed_over(isa):
    """The buffer read last is the one that the tape gives, and what is in it stays."""
    torch.manual_seed(2)
    table, a = (packed.pack(torch.randn(64, 64), "bf16") for _ in range(2))
    tape = Tape()
    middle = tape.linear(tape.embed(table), a)
    tape.linear(middle, a)
    tape.linear(tape.embed(table), a, into=middle, add=True)
    y = packed.linear(table.rows(torch.arange(37)), a)
    wanted = packed.linear(table.rows(torch.arange(37)), a, out=y.clone(), add=True)
    assert torch.equal(states(tape), wanted)
