"""Forward: how a pass computes hidden states. The seam behind which eager torch, captured graphs
and native code are the same to the runner.

    Eager           the model's own code, operation by operation, on any device
    worker.graphs   the same operations replayed as a CUDA graph
    worker.native   a tape of sgl-kernel operations, one native call a pass, on a CPU
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from srt.attention.base import Attention
from srt.models.llama import LlamaForCausalLM
from srt.worker.inputs import Inputs


class Forward(Protocol):
    """Mutates the KV pools at the planned slots, nothing else."""

    def hidden(self, inputs: Inputs) -> Tensor:
        """Normed hidden states [T, width] of the pass's tokens. They may lie in a buffer that the
        next call overwrites."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, width] -> [N, vocab], any float dtype."""
        ...


class Eager:
    def __init__(self, model: LlamaForCausalLM, attention: Attention) -> None:
        self.model, self.attention = model, attention

    def hidden(self, inputs: Inputs) -> Tensor:
        self.attention.plan(inputs.layout)
        return self.model.forward(inputs.tokens, inputs.positions, self.attention)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)
