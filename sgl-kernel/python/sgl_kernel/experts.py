"""A mixture of experts on a CPU: routing, the products of all experts that are chosen and the
weighted sums, in one native call."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from sgl_kernel.arrays import AnyArray, address, described, dtype_name, empty, floats, stride
from sgl_kernel.fields import Fields, bits
from sgl_kernel.native import need
from sgl_kernel.packed import ACTIVATIONS, Packed

MAX_EXPERTS = 1024


@dataclass(frozen=True)
class Routing:
    """Scores are the softmax of the logits, or their sigmoid; the ``top_k`` best are chosen, of
    equals the lowest ids.

    Attributes:
        renormalise: the chosen scores add up to 1, before they are multiplied by ``scale``.
        groups, kept, group_best: experts in runs of equal length, of which only the ``kept`` best
            count; a run is as good as the sum of its ``group_best`` best.
        bias: float32 [experts], added to the scores for the choice alone.
    """

    experts: int
    top_k: int
    sigmoid: bool = False
    renormalise: bool = False
    scale: float = 1.0
    groups: int = 1
    kept: int = 1
    group_best: int = 1
    bias: AnyArray | None = None

    def __post_init__(self) -> None:
        n, g = self.experts, self.groups
        if not 1 <= self.top_k <= n <= MAX_EXPERTS:
            raise ValueError(f"top_k is {self.top_k} of {n} experts; 1 to all of {MAX_EXPERTS}.")
        if g < 1 or n % g:
            raise ValueError(f"{n} experts cannot be in {g} groups of one size.")
        if not 1 <= self.kept <= g or self.kept * (n // g) < self.top_k:
            raise ValueError(
                f"of {g} groups {self.kept} are kept, with {self.kept * (n // g)} experts; "
                f"{self.top_k} are chosen."
            )
        if not 1 <= self.group_best <= n // g:
            raise ValueError(f"group_best is {self.group_best}; groups have {n // g} experts.")


class Experts:
    """``y = sum of weight * down(act(gate) * up)`` over a token's experts, in the order in which
    they were chosen.

    A row's bits do not depend on the other rows. Keeps alive what it points to.
    """

    def __init__(
        self,
        routing: Routing,
        router: Packed,
        gate_up: Sequence[Packed],
        down: Sequence[Packed],
        act: str = "silu",
        router_bias: AnyArray | None = None,
        gate_up_bias: Sequence[AnyArray | None] | None = None,
        down_bias: Sequence[AnyArray | None] | None = None,
    ) -> None:
        """One ``gate_up`` (paired) and ``down`` for each expert; one more is an expert that all
        tokens go through, at weight 1, or at the sigmoid of the router's last row where that has
        one row more than there are experts. Raises ValueError for shapes that do not fit."""
        n, count = routing.experts, len(gate_up)
        shared, gate = count == n + 1, router.n == n + 1
        self.width = router.k
        if count not in (n, n + 1) or router.n not in (n, n + 1) or (gate and not shared):
            raise ValueError(f"{router.n} rows of a router and {count} matrices for {n} experts.")
        if len(down) != count:
            raise ValueError(f"{count} experts have gates and {len(down)} the rest.")
        for up, back in zip(gate_up, down):
            if not up.paired or (up.k, back.k, back.n) != (self.width, up.n // 2, self.width):
                raise ValueError(f"an expert has [{up.n}, {up.k}] and [{back.n}, {back.k}].")
        if any(matrix.order is not None for matrix in (router, *gate_up, *down)):
            raise ValueError("experts take their inputs as they come; a matrix has an order.")
        up_bias = _vectors(gate_up_bias, gate_up)
        back_bias = _vectors(down_bias, down)
        (router_bias,) = _vectors([router_bias], [router])
        (bias,) = _vectors([routing.bias], [router], n)
        rest = Fields(
            [n, routing.top_k, routing.sigmoid, routing.renormalise, bits(routing.scale),
             routing.groups, routing.kept, routing.group_best, address(bias), ACTIVATIONS[act],
             shared, gate, address(router_bias), *router.native.array],
        )  # fmt: skip
        table: list[int | None] = []
        for up, back, a, b in zip(gate_up, down, up_bias, back_bias):
            table += [*up.native.array, *back.native.array, address(a), address(b)]
        native, matrices = need(), Fields(table)  # held until they are read
        self.address = native.experts_new(rest.address, matrices.address)
        self._kept = (router, tuple(gate_up), tuple(down), up_bias, back_bias, router_bias, bias)
        # Not at exit: a thread may still be in a pass then, and memory goes with the process.
        weakref.finalize(self, native.experts_free, self.address).atexit = False

    def __call__(
        self,
        x: AnyArray,
        *,
        gain: AnyArray | None = None,
        eps: float = 1e-6,
        out: AnyArray | None = None,
        threads: int = 1,
    ) -> AnyArray:
        """x float32 [m, width] -> [m, width], added to ``out`` where that is given. ``gain``
        [width]: x is RMS-normed first. Raises ValueError, MemoryError."""
        m, add = x.shape[0], out is not None
        y = empty(x, m, self.width) if out is None else out
        for name, t in (("x", x), ("out", y)):
            fits = dtype_name(t) == "float32" and t.shape == (m, self.width)
            if not fits or (m and stride(t, 1) != 1):
                raise ValueError(f"{name} is {described(t)}; float32 [m, {self.width}].")
        gain = None if gain is None else floats(gain)
        good = need().experts(
            self.address, threads, address(gain), eps, address(x), stride(x), m, add,
            address(y), stride(y),
        )  # fmt: skip
        if not good:
            raise MemoryError(f"no memory for experts over {m} rows.")
        return y


def _vectors(
    biases: Sequence[AnyArray | None] | None, of: Sequence[Packed], size: int = 0
) -> list[AnyArray | None]:
    if biases is None:
        return [None] * len(of)
    for bias, matrix in zip(biases, of, strict=True):
        if bias is not None and bias.shape != (size or matrix.n,):
            raise ValueError(f"a bias has shape {tuple(bias.shape)}; [{size or matrix.n}].")
    return [None if bias is None else floats(bias) for bias in biases]
