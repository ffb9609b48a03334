"""Forward: how a pass computes hidden states. The seam behind which eager torch, captured graphs
and native code are the same to the runner.

    Eager                   the model's own code, operation by operation, on any device
    worker.graphs           the same operations replayed as a CUDA graph
    worker.host_forward     a tape of sgl-kernel operations, one native call a pass, on a CPU
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
    """Mutates the KV pools at the planned slots, nothing else. Its states, logits and tokens are
    arrays or tensors, as ``logits.results.Results`` of the device takes them."""

    def hidden(self, inputs: Inputs, wanted: Int32Array) -> Any:
        """Normed hidden states [len(wanted), width] of the tokens ``wanted``, ascending indices
        into the pass. They may lie in a buffer that the next call overwrites."""
        ...

    def logits(self, hidden: Any) -> Any:
        """[N, width] -> [N, vocab], any float dtype."""
        ...

    def draw(self, logits: Any, samples: Sequence[Sample]) -> Drawing:
        """See ``logits.sampler.draw``; need not wait for the device."""
        ...


@dataclass(frozen=True)
class ForwardChoice:
    """The kernels, the attention and the graphs that a forward uses.

    Attributes:
        kernels: the instruction set of native kernels, or "torch".
        attention: name of the attention implementation, "" with native kernels.
        graph_rows: rows of the largest CUDA graph; 0 where there are no graphs.
        fallbacks: a line for each part that failed, with what is used instead.
    """

    forward: Forward
    kernels: str
    attention: str = ""
    graph_rows: int = 0
    fallbacks: tuple[str, ...] = ()


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
            from sglang.srt.logits import gpu_draw

            return gpu_draw.draw(logits, samples)
        from sglang.srt.logits import sampler

        tokens, errors = sampler.draw(logits, samples)
        return drawn(tokens.int(), errors)


def compute(model: DecoderModel, inputs: Inputs, attention: Attention) -> Tensor:
    """Hidden states [T, width]; ``attention`` is planned. A model that does not own the first layer
    gets those of the layer before as ``embedded``, of all tokens."""
    x, embedded, given = inputs.tokens, inputs.embedded, None
    if embedded is not None and model.first:
        given = send(embedded.at, x.device).long(), embedded.states
    elif embedded is not None:
        x = embedded.states
    return forward(model, x, ForwardStep(inputs.positions, attention, inputs.use, given))
