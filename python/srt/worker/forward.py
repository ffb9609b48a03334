"""Forward: protocol for computing the hidden states of a pass. Its implementations (eager torch,
captured graphs, native code) look the same to the runner.

    Eager                   the model's own code, operation by operation, on any device
    worker.graphs           the same operations replayed as a CUDA graph
    worker.host_forward     an op list of sgl-kernel, one native call a pass, on a CPU
    worker.native_forward   native products and attention among torch's operations
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from sglang.srt.attention.attention_protocol import Attention, Int32Array
from sglang.srt.core.batch import Sample
from sglang.srt.layers.torch_writer import ForwardStep, forward
from sglang.srt.logits.drawing import Drawing, drawn
from sglang.srt.logits.torch_results import pick
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.numeric.torch_later import Tensor
from sglang.srt.parallel.staging import send
from sglang.srt.worker.inputs import Inputs


class Forward(Protocol):
    """Computes states, logits and samples: NumPy arrays or tensors, as ``logits.results.Results``
    of the device takes them. Calls change only the planned slots of the KV pools."""

    def hidden(self, inputs: Inputs, wanted: Int32Array) -> Any:
        """Return normed hidden states [len(wanted), width] of the tokens ``wanted``, ascending
        indices into the pass. The next call may overwrite the result."""
        ...

    def logits(self, hidden: Any) -> Any:
        """Return the logits [N, vocab], any float dtype, of hidden states [N, width]."""
        ...

    def draw(self, logits: Any, samples: Sequence[Sample]) -> Drawing:
        """Sample as ``logits.sampler.draw`` does, without necessarily waiting for the device."""
        ...


@dataclass(frozen=True)
class ForwardChoice:
    """A forward and its kernels, attention implementation and graphs.

    Attributes:
        kernels: the instruction set of native kernels, or "torch".
        attention: name of the attention implementation, "" with native kernels.
        graph_rows: rows of the largest CUDA graph; 0 where there are no graphs.
        fallbacks: a line for each part that failed, with the replacement that is used.
    """

    forward: Forward
    kernels: str
    attention: str = ""
    graph_rows: int = 0
    fallbacks: tuple[str, ...] = ()


class Eager:
    """Passes by the model's own code. ``fused_sampling``: a GPU samples by sgl_kernel.triton."""

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
            from sglang.srt.logits import gpu_draw

            return gpu_draw.draw(logits, samples)
        from sglang.srt.logits import sampler

        tokens, errors = sampler.draw(logits, samples)
        return drawn(tokens.int(), errors)


def compute(model: DecoderModel, inputs: Inputs, attention: Attention) -> Tensor:
    """Return hidden states [T, width]; ``attention`` has planned the pass. A model without the
    first layer gets the previous layer's states of all tokens as ``inputs.embedded``."""
    x, embedded, given = inputs.tokens, inputs.embedded, None
    if embedded is not None and model.first:
        given = send(embedded.at, x.device).long(), embedded.states
    elif embedded is not None:
        x = embedded.states
    return forward(model, x, ForwardStep(inputs.positions, attention, inputs.use, given))
