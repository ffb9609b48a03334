"""Routing: choice of a token's experts and of their weights.

Mixtral takes a softmax over all experts and chooses the best (Jiang et al. 2024, "Mixtral of
Experts", section 2.1). DeepSeek-V2 (2024, section 2.2.2) chooses groups of experts first, then
experts of these groups. DeepSeek-V3 (2024, section 2.1.2) scores by a sigmoid and adds a bias for
the choice only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sglang.srt.numeric.torch_later import Tensor, torch

Scores = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class Routing:
    """Routing rule. Among equal experts or groups, the lowest index is chosen first.

    Attributes:
        scores: function of the logits. (A softmax over the chosen experts alone is "softmax"
            with ``renormalise``.)
        renormalise: the weights of the chosen experts add up to 1 before they are scaled.
        scale: factor of the weights.
        groups, kept: experts form ``groups`` groups of equal size; the ``kept`` best are eligible.
        group_best: a group's score is the sum of its ``group_best`` best experts' scores.
    """

    experts: int
    top_k: int
    scores: Scores = "softmax"
    renormalise: bool = False
    scale: float = 1.0
    groups: int = 1
    kept: int = 1
    group_best: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError if fewer than ``top_k`` experts are eligible, or groups are uneven."""
        each = self.experts // self.groups
        if not 1 <= self.top_k <= self.kept * each or self.experts % self.groups:
            raise ValueError(
                f"{self.top_k} experts cannot be chosen among {self.experts} in {self.groups} "
                f"groups of which {self.kept} are kept."
            )
        if self.group_best > each:
            raise ValueError(f"groups of {each} experts cannot be judged by {self.group_best}.")


def route(logits: Tensor, rule: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the weights, float32, and the experts, int64, of each token [T, top_k], best first.

    logits: float32 [T, experts]. bias: [experts], added to the scores for the choice only.
    """
    scores = logits.sigmoid() if rule.scores == "sigmoid" else logits.softmax(-1)
    merit = scores if bias is None else scores + bias
    if rule.scores == "softmax" and bias is None and rule.kept == rule.groups:
        merit = logits  # the same order as the scores, with fewer ties by rounding
    if rule.kept < rule.groups:
        grouped = merit.unflatten(-1, (rule.groups, -1))
        best = grouped.sort(dim=-1, descending=True).values[..., : rule.group_best].sum(-1)
        lost = _ranked(best)[:, rule.kept :]
        merit = grouped.index_put(
            (torch.arange(len(lost), device=lost.device).unsqueeze(1), lost),
            merit.new_tensor(-math.inf),
        ).flatten(1)
    chosen = _ranked(merit)[:, : rule.top_k]
    weights = scores.gather(1, chosen)
    if rule.renormalise and rule.scores == "softmax":
        weights = logits.gather(1, chosen).softmax(-1)
    elif rule.renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return (weights if rule.scale == 1 else weights * rule.scale), chosen


def _ranked(x: Tensor) -> Tensor:
    return x.sort(dim=-1, descending=True, stable=True).indices
