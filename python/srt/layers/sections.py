"""Rotary embedding in sections (M-RoPE; Qwen2-VL, Wang et al. 2024, section 2.1): of a head's pairs
of dimensions some turn by a token's time, some by its height, some by its width."""

from __future__ import annotations

import torch
from sglang.srt.layers.rotary import Angles, Rope, Rotary
from torch import Tensor


class SectionedRotary(Rotary):
    """``sections``: how many pairs turn by time, by height and by width, one after the other."""

    def __init__(
        self,
        rope: Rope,
        sections: tuple[int, int, int],
        length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(rope, 2 * sum(sections), length, dtype, device)
        self.sections = sections

    def at(self, positions: Tensor) -> Angles:
        """As ``Rotary.at``, of positions [3, T]; of [T] where all three are the same."""
        if positions.ndim == 1:
            return super().at(positions)
        tokens = positions.shape[1]
        rows = self.table.index_select(0, positions.flatten()).unflatten(0, (3, tokens))
        # A pair's two dimensions lie half a head apart, so the sections come twice.
        parts = rows.split_with_sizes(self.sections * 2, dim=-1)
        cos, sin = torch.cat([part[i % 3] for i, part in enumerate(parts)], dim=-1).unbind(1)
        return cos, sin
