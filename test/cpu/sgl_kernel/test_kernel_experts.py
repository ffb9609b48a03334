"""The native mixture of experts against float64, on every instruction set, and its promises: rows
that do not depend on each other, ties by the lowest number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sgl_kernel import native, packed, reference
from sgl_kernel.experts import Experts, Routing
from sglang.srt.layers import routing
from torch import Tensor

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")


@pytest.fixture(params=native.isas())
def isa(request):
    native.choose(request.param)
    yield request.param
    native.choose()


@dataclass
class Layer:
    """Random weights of a layer; the last expert is the shared one where there is one more."""

    rule: Routing
    router: Tensor
    gate_up: list[Tensor]
    down: list[Tensor]
    act: str = "silu"
    biases: tuple[Any, ...] = ()  # router's, gate_up's, down's

    def packed(self, format: str) -> Experts:
        return Experts(
            self.rule, packed.pack(self.router, "f32"),
            [packed.pack(w, format, paired=True) for w in self.gate_up],
            [packed.pack(w, format) for w in self.down], self.act, *self.biases,
        )  # fmt: skip

    def exact(self, x: Tensor) -> Tensor:
        rule = replace(self.rule, bias=None if self.rule.bias is None else self.rule.bias.double())
        biases: Any = [
            [b.double() for b in part] if isinstance(part, list) else part.double()
            for part in self.biases
        ]
        return reference.experts(
            x.double(), rule, self.router.double(), [w.double() for w in self.gate_up],
            [w.double() for w in self.down], self.act, *biases,
        )  # fmt: skip


def layer(
    rule: Routing, width: int, inner: int, shared: int = 0, gate: bool = False, seed: int = 0,
    act: str = "silu", biased: bool = False,
) -> Layer:  # fmt: skip
    g = torch.Generator().manual_seed(seed)

    def matrix(n: int, k: int) -> Tensor:
        return torch.randn(n, k, generator=g) * k**-0.5

    inners = [inner] * rule.experts + [shared] * bool(shared)
    gate_up = [matrix(2 * i, width) for i in inners]
    down = [matrix(width, i) for i in inners]
    biases: tuple[Any, ...] = ()
    if biased:
        biases = (
            matrix(1, rule.experts + gate)[0], [matrix(1, 2 * i)[0] * 9 for i in inners],
            [matrix(1, width)[0] for _ in inners],
        )  # fmt: skip
    return Layer(rule, 2 * matrix(rule.experts + gate, width), gate_up, down, act, biases)


def rows(m: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(m, width, generator=torch.Generator().manual_seed(seed + m))


V3 = Routing(8, 2, True, True, 2.5, 4, 2, 2, bias=torch.linspace(-0.2, 0.2, 8))
LAYERS = [
    (0, layer(Routing(4, 2), 32, 16)),
    (1, layer(Routing(3, 3, renormalise=True), 7, 5)),
    (5, layer(Routing(1, 1), 65, 33, act="gelu")),
    (37, layer(Routing(6, 3, renormalise=True, scale=0.5), 33, 17, shared=20, gate=True)),
    (70, layer(V3, 64, 48, shared=50)),
    (3, layer(Routing(60, 4), 40, 24)),  # most experts without a token
    (20, layer(Routing(8, 2, groups=4, kept=2), 30, 70, act="clamped_swiglu", biased=True)),
    (9, layer(Routing(4, 1), 16, 8, shared=8, gate=True, biased=True)),
    (130, layer(Routing(2, 1), 130, 96)),  # several groups of rows in one expert
]
# Bounds relative to the largest value of a row, computed with the weights as the format stores
# them.
BOUNDS = {"f32": 1e-5, "bf16": 3e-2, "w8a8": 8e-2}


@pytest.mark.parametrize("format", BOUNDS)
def test_equals_the_definition(isa: str, format: str) -> None:
    for m, one in LAYERS:
        x = rows(m, one.router.shape[1])
        want = one.exact(x)
        got = one.packed(format)(x, threads=2)
        top = want.abs().amax(-1, keepdim=True) if m else want
        assert ((got.double() - want).abs() <= BOUNDS[format] * top).all(), one.rule


@pytest.mark.parametrize("format", packed.FORMATS)
def test_a_row_does_not_depend_on_others(isa: str, format: str) -> None:
    one = layer(Routing(6, 2, renormalise=True), 48, 40, shared=24, gate=True)
    experts, x = one.packed(format), rows(150, 48)
    whole = experts(x)
    for m in (1, 2, 15, 16, 17, 33, 97):
        first = (m * 37) % (150 - m)
        assert torch.equal(
            experts(x[first : first + m], threads=m % 3 + 1), whole[first : first + m]
        )
    assert torch.equal(experts(x, threads=3), whole)


def test_slabs(isa: str) -> None:
    """More rows than scratch memory is given for at a time."""
    one = layer(Routing(2, 2), 8, 3000)
    experts, x = one.packed("f32"), rows(2500, 8)
    whole = experts(x, threads=2)
    for first in (0, 1200, 2490):
        assert torch.equal(experts(x[first : first + 10]), whole[first : first + 10])


def test_what_comes_before_and_after() -> None:
    """RMSNorm before, the residual after; rows apart from each other."""
    one = layer(Routing(4, 2), 32, 16)
    wide = torch.full((9, 40), float("nan"))
    wide[:, :32] = rows(9, 32) * 3
    x, gain = wide[:, :32], rows(1, 32)[0]
    residual = rows(9, 32, seed=5)
    want = one.exact(reference.norm(x.double(), gain.double(), 1e-5)) + residual.double()
    got = one.packed("f32")(x, gain=gain, eps=1e-5, out=residual)
    assert got is residual
    assert (got - want).abs().max() < 1e-5


@pytest.mark.parametrize("sigmoid", [False, True])
def test_ties_go_to_the_lowest(sigmoid: bool) -> None:
    """Logits in few different values: every choice is one of equals."""
    one = layer(Routing(12, 3, sigmoid, renormalise=True, groups=4, kept=3), 6, 4)
    one.router = torch.randint(-1, 2, (12, 6), generator=torch.Generator().manual_seed(1)).float()
    x = torch.randint(-1, 2, (300, 6), generator=torch.Generator().manual_seed(2)).float()
    want = one.exact(x)
    assert (one.packed("f32")(x) - want).abs().max() < 1e-5


def test_what_is_not_finite_stays_in_its_row() -> None:
    one = layer(Routing(8, 2), 16, 8)
    x = rows(12, 16)
    clean = one.packed("f32")(x)
    x[3, 5], x[7] = float("nan"), float("inf")
    got = one.packed("f32")(x)
    bad = torch.zeros(12, dtype=torch.bool)
    bad[[3, 7]] = True
    assert torch.equal(got[~bad], clean[~bad])
    assert not got[bad].isfinite().any()


@st.composite
def rules(draw: st.DrawFn) -> Routing:
    groups, each = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    kept = draw(st.integers(1, groups))
    bias = draw(
        st.none() | st.lists(st.integers(-2, 2), min_size=groups * each, max_size=groups * each)
    )
    return Routing(
        groups * each, draw(st.integers(1, kept * each)), draw(st.booleans()),
        draw(st.booleans()), draw(st.sampled_from([1.0, 2.5])), groups, kept,
        draw(st.integers(1, each)), None if bias is None else torch.tensor(bias) / 8,
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(rules(), st.randoms(use_true_random=False))
def test_routing_of_models(rule: Routing, random: Any) -> None:
    """Routing that layers compute by torch follows the same rule, ties included."""
    mine = routing.Routing(
        rule.experts, rule.top_k, "sigmoid" if rule.sigmoid else "softmax", rule.renormalise,
        rule.scale, rule.groups, rule.kept, rule.group_best,
    )  # fmt: skip
    logits = torch.tensor([[random.randint(-4, 4) / 2 for _ in range(rule.experts)] for _ in "abc"])
    weights, chosen = routing.route(logits, mine, rule.bias)
    for t in range(len(logits)):
        want = reference.route(logits[t], rule)
        assert chosen[t].tolist() == [e for e, _ in want]
        assert weights[t].tolist() == pytest.approx([w for _, w in want], rel=1e-5)


BAD = [
    ({"top_k": 0}, "top_k is 0"),
    ({"top_k": 9}, "top_k is 9 of 8"),
    ({"groups": 3}, "cannot be in 3 groups"),
    ({"groups": 4, "kept": 1, "top_k": 3}, "with 2 experts; 3 are chosen"),
    ({"groups": 4, "kept": 4, "group_best": 3}, "group_best is 3"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_rules_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Routing(8, 2), **changes)


def test_shapes_that_do_not_fit() -> None:
    one = layer(Routing(4, 2), 32, 16)
    for name, value in (
        ("router", one.router[:, 1:]), ("router", one.router[:3]), ("down", one.down[:3]),
        ("gate_up", [*one.gate_up[:3], one.gate_up[3][2:]]), ("biases", (one.router[:, 0][:2],)),
    ):  # fmt: skip
        wrong: Any = {name: value}
        with pytest.raises(ValueError, match=r"experts|expert|bias"):
            replace(one, **wrong).packed("f32")
    with pytest.raises(ValueError, match="32"):
        one.packed("f32")(rows(3, 31))
