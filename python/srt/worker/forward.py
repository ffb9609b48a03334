"""Forward: how a pass computes hidden states. The seam behind which eager torch, captured graphs
and native code are the same to the runner.

    Eager                   the model's own code, operation by operation, on any device
    worker.graphs           the same operations replayed as a CUDA graph
    worker.native_forward   a tape of sgl-kernel operations, one native call a pass, on a CPU
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from sglang.srt.attention.attention_protocol import Attention, Int32Array
from sglang.srt.core.batch import Sample
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.parallel.staging import send
from sglang.srt.worker import sampler
from sglang.srt.worker.inputs import Inputs
from sglang.srt.worker.sampler import Drawing, drawn
from torch import Tensor


class Forward(Protocol):
    """Mutates the KV pools at the planned slots, nothing else."""

    def hidden(self, inputs: Inputs, wanted: Int32Array) -> Tensor:
        """Normed hidden states [len(wanted), width] of the tokens ``wanted``, ascending indices
        into the pass. They may lie in a buffer that the next call overwrites."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, width] -> [N, vocab], any float dtype."""
        ...

    def draw(self, logits: Tensor, samples: Sequence[Sample]) -> Drawing:
        """See ``worker.sampler.draw``; need not wait for the device."""
        ...


class Eager:
    """``fused_sampling``: by the kernels of sgl_kernel.triton, on a GPU that has them."""

    def __init__(
        self, model: DecoderModel, attention: Attention, fused_sampling: bool = True
    ) -> None:
        self.model, self.attention, self.fused_sampling = model, attention, fused_sampling

    def hidden(self, inputs: Inputs, wanted: Int32Array) -> Tensor:
        self.attention.plan(inputs.layout)
        return pick(compute(self.model, inputs, self.attention), wanted)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)

    def draw(self, logits: Tensor, samples: Sequence[Sample]) -> Drawing:
        found = find_spec("triton") and find_spec("sgl_kernel")
        if logits.is_cuda and self.fused_sampling and found:
            from sglang.srt.worker import gpu_draw

            return gpu_draw.draw(logits, samples)
        return drawn(*sampler.draw(logits, samples))


def compute(model: DecoderModel, inputs: Inputs, attention: Attention) -> Tensor:
    """Hidden states [T, width]; ``attention`` is planned. A model that does not own the first layer
    gets those of the layer before as ``embedded``, of all tokens."""
    embedded = inputs.embedded
    if embedded is None:
        return model.forward(inputs.tokens, inputs.positions, attention, inputs.use)
    if not model.first:
        return model.forward(embedded.states, inputs.positions, attention, inputs.use)
    x = model.embed(inputs.tokens)
    x = x.index_copy(0, send(embedded.at, x.device).long(), embedded.states.to(x))
    return model.compute(x, inputs.positions, attention, inputs.use)


def pick(hidden: Tensor, wanted: np.ndarray[Any, Any]) -> Tensor:
    """Rows ``wanted`` (ascending, distinct) of hidden [T, width]."""
    if len(wanted) == hidden.shape[0]:  # all of them
        return hidden
    return hidden.index_select(0, send(wanted, hidden.device))
