"""Muon for the matrices, AdamW for the embedding and the gains.

Muon is written out here because the library version orthogonalises in bfloat16, which is several
times slower than float32 on processors without bfloat16 units, and every replica would do all of
it.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from tools.train_tiny.replicas import ALONE, Replica

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(stack: Tensor, rounds: int = 4) -> Tensor:
    """Newton-Schulz iteration towards the nearest orthogonal matrix, for a stack of matrices."""
    a, b, c = COEFFICIENTS
    tall = stack.shape[-2] > stack.shape[-1]
    x: Tensor = stack.mT if tall else stack
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):  # type: ignore[misc]  # pyproject leaves torch.optim out
    """Momentum whose update is orthogonalised. Matrices of one shape are handled as one stack,
    which the replicas share among them."""

    def __init__(
        self, params: list[nn.Parameter], lr: float, replica: Replica, dtype: torch.dtype,
        momentum: float = 0.95, decay: float = 0.1,
    ) -> None:  # fmt: skip
        """``dtype``: of the products that orthogonalise."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})
        self._replica, self._dtype = replica, dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every matrix once."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for param in group["params"]:
                by_shape[param.shape].append(param)
            for shape, params in by_shape.items():
                self._step_stack(params, group, max(1.0, shape[0] / shape[1]) ** 0.5)

    def _step_stack(
        self, params: list[nn.Parameter], group: dict[str, float], scale: float
    ) -> None:
        blends = []
        for param in params:
            assert param.grad is not None
            state = self.state[param]
            if not state:
                state["velocity"] = torch.zeros_like(param)
            state["velocity"].lerp_(param.grad, 1 - group["momentum"])
            blends.append(param.grad.lerp(state["velocity"], group["momentum"]))
        updates = self._replica.shared(
            torch.stack(blends), lambda part: orthogonalise(part.to(self._dtype)).float()
        )
        for param, update in zip(params, updates, strict=True):
            param.mul_(1 - group["lr"] * group["decay"])
            param.add_(update, alpha=-group["lr"] * scale)


def build_optimizers(
    model: nn.Module, matrix_lr: float, other_lr: float, replica: Replica = ALONE,
    dtype: torch.dtype = torch.float32, matrix_decay: float = 0.1,
) -> list[torch.optim.Optimizer]:  # fmt: skip
    """Matrices of the layers to Muon, the rest to AdamW; gains move slower than embeddings."""
    named = dict(model.named_parameters())
    matrices = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name]
    embeddings = [p for name, p in named.items() if "embed" in name]
    gains = [p for p in named.values() if p.ndim == 1]
    groups = [{"params": embeddings}, {"params": gains, "lr": other_lr / 4}]
    adam = torch.optim.AdamW(groups, lr=other_lr, betas=(0.9, 0.98), weight_decay=0.0)
    return [Muon(matrices, matrix_lr, replica, dtype, decay=matrix_decay), adam]
