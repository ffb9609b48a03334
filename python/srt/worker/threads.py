"""Threads: how many CPU threads a pass gets."""

from __future__ import annotations

import torch

# Multiply-adds that one thread does in the time it takes to wake the others at every operation.
LIGHT = 1 << 27
# Torch's own number, before a worker of this process has set another.
DEFAULT = torch.get_num_threads()


class Threads:
    """Number of torch's threads: always ``fixed`` where that is set; else one thread for a light
    pass and torch's own number for a heavy one. Set in the thread that runs the passes: others keep
    theirs."""

    def __init__(self, fixed: int, parameters: int, device: torch.device) -> None:
        self.most = fixed or DEFAULT
        self.adaptive = not fixed and device.type == "cpu" and self.most > 1
        self.parameters = parameters

    def prepare(self, num_tokens: int) -> None:
        """Set the threads before a pass over ``num_tokens`` tokens."""
        light = self.adaptive and num_tokens * self.parameters <= LIGHT
        wanted = 1 if light else self.most
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)
