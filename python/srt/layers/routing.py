"""Routing: the experts of a token, and the weight of each.

Softmax over all experts and the best of them is Mixtral's rule (Jiang et al. 2024, "Mixtral of
Experts", section 2.1). Experts in groups of which only the best count are DeepSeek-V2's (2024,
section 2.2.2); scores by a sigmoid and a bias that acts on the choice alone DeepSeek-V3's (2024,
section 2.1.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sglang.srt.numeric.torch_later import Tensor, torch

Scores = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class Routing:
    """The rule. Of equals the lowest id goes first, for experts and for groups.

    Attributes:
        scores: what logits become. A softmax over the chosen alone is one over all,
            renormalised.
        renormalise: the weights of the chosen add up to 1 before they are scaled.
        scale: multiplies the weights.
        groups, kept: experts in ``groups`` runs of equal length; only the ``kept`` best runs count.
        group_best: a run is as good as its so many best experts together.
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
        """Raise ValueError where there are fewer than ``top_k`` experts to choose from."""
        each = self.experts // self.groups
        if not 1 <= self.top_k <= self.kept * each or self.experts % self.groups:
            raise ValueError(
                f"{self.top_k} experts cannot be chosen among {self.experts} in {self.groups} "
                f"groups of which {self.kept} are kept."
            )
        if self.group_best > each:
            raise ValueError(f"groups of {each} experts cannot be judged by {self.group_best}.")


def route(logits: Tensor, rule: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights float32 and experts int64, both [T, top_k], the best first.

    logits: float32 [T, experts]. bias: [experts], added to the scores for the choice alone.
    """
    scores = logits.sigmoid() if rule.scores == "sigmoid" else logits.softmax(-1)
    merit = scores if bias is None else scores + bias
    if rule.scores == "softmax" and bias is None and rule.kept == rule.groups:
        merit = logits  # the same order, except for what rounding makes equal
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
