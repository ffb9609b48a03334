"""Threads: how many CPU threads a pass gets."""

from __future__ import annotations

import torch

# Multiply-adds that one thread does in the time it takes to wake the others at every operation.
LIGHT = 1 << 27


class Threads:
    """With ``fixed`` threads set by the user, always those; else one thread for a light pass and
    torch's own number for a heavy one. Calls torch.set_num_threads, for the calling thread."""

    def __init__(self, fixed: int, parameters: int, device: torch.device) -> None:
        if fixed:
            torch.set_num_threads(fixed)
        self.most = torch.get_num_threads()
        self.adaptive = not fixed and device.type == "cpu" and self.most > 1
        self.parameters = parameters

    def prepare(self, num_tokens: int) -> None:
        """To be called before a pass over ``num_tokens`` tokens."""
        if self.adaptive:
            light = num_tokens * self.parameters <= LIGHT
            torch.set_num_threads(1 if light else self.most)
