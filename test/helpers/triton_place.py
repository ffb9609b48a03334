"""Devices, numbers and tolerances of the cases of the Triton kernels."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

# ||out - truth|| / ||truth||. float16 keeps 11 bits and bfloat16 8; sums are float32 in all.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass
class Place:
    """``large``: sizes for a GPU; else tiny, for the interpreter (milliseconds an operation)."""

    device: str
    dtype: torch.dtype
    large: bool
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.numbers = random.Random(self.seed)

    @property
    def small(self) -> bool:
        return not self.large

    def pick(self, low: int, high: int) -> int:
        return self.numbers.randint(low, high)

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Normal values, sampled on the CPU."""
        x = torch.randn(*shape, generator=self.generator)
        return x.to(self.device, dtype or self.dtype)

    def ints(self, values: Any) -> Tensor:
        return torch.from_numpy(np.asarray(values).astype(np.int32)).to(self.device)

    def close(self, out: Tensor, truth: Tensor, times: float = 1.0) -> None:
        """Fails on NaN too."""
        error = float((out.double() - truth.double()).norm() / truth.double().norm())
        limit = TOLERANCES[self.dtype] * times
        assert error <= limit, f"relative error {error:.2e}, at most {limit:.0e} is allowed"
