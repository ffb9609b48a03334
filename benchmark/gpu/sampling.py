"""Sampling: tokens from logits, by our kernels and by eager torch.

launch     host time of the whole seam: parameters to the device, kernels, as each pass does it
torch      softmax, sort, cumulated sum and multinomial: nucleus sampling as it is usually written
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import Sample
from torch import Tensor

from benchmark.gpu.bench import Bench, share
from benchmark.gpu.layers import missing
from benchmark.gpu.timing import copies, timed

KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "top-p": SamplingParams(temperature=0.8, top_p=0.9),
    "top-k, top-p, min-p": SamplingParams(temperature=0.8, top_p=0.95, top_k=50, min_p=0.05),
}


def sampling(bench: Bench) -> None:
    if missing(bench):
        return
    vocab = 160 if bench.tiny else 128256
    for kind, params in KINDS.items():
        for rows in (2,) if bench.tiny else (1, 32, 256):
            if not bench.enough(3, f"{kind} x {rows} and what follows"):
                return
            if not bench.first(f"{kind} x {rows}"):
                continue
            try:
                _case(bench, kind, params, rows, vocab)
            except Exception as error:  # a kernel that breaks is a result
                bench.failed(f"{kind} x {rows}", error)


def _case(bench: Bench, kind: str, params: SamplingParams, rows: int, vocab: int) -> None:
    from sgl_kernel.triton import sampling as kernels
    from sglang.srt.logits import gpu_draw

    samples = [Sample(params, uniform=(i + 0.5) / rows) for i in range(rows)]
    size = 4 * rows * vocab
    logits = [
        3 * torch.randn(rows, vocab, device=bench.device)
        for _ in range(1 if bench.tiny else copies(size))
    ]
    vectors = _vectors(samples, bench.device)
    launch = timed(bench, [partial(gpu_draw.draw, logits[0], samples)], 0.1).host
    if params.greedy:
        ours = timed(bench, [partial(kernels.greedy, x) for x in logits], 0.2)
        torch_works = [partial(torch.max, x, -1) for x in logits]
    else:
        ours = timed(bench, [partial(kernels.sample, x, *vectors) for x in logits], 0.2)
        torch_works = [partial(_nucleus, x, vectors[0], vectors[2]) for x in logits]
    eager = timed(bench, torch_works, 0.2)
    bound = bench.bound(size)
    bench.row(
        "sampling", kind=kind, rows=rows, us=ours.seconds * 1e6, **{
            "bound us": bound * 1e6 or None, "of bound": share(bound, ours.seconds),
            "launch us": launch * 1e6, "torch us": eager.seconds * 1e6, "how": ours.how,
        },
    )  # fmt: skip


def _vectors(samples: Sequence[Sample], device: torch.device) -> tuple[Tensor, ...]:
    """Temperature, top-k, top-p, min-p and uniform, as ``sampling.sample`` of the kernels takes
    them."""
    params = [s.params for s in samples]

    def vector(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return (
        vector([p.temperature for p in params]),
        vector([max(p.top_k, 0) for p in params], torch.int32),
        vector([p.top_p for p in params]),
        vector([p.min_p for p in params]),
        vector([s.uniform for s in samples], torch.float64),
    )


def _nucleus(logits: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:
    probs, ids = (logits / temperature.unsqueeze(1)).softmax(-1).sort(-1, descending=True)
    probs = probs.masked_fill(probs.cumsum(-1) - probs > top_p.unsqueeze(1), 0.0)
    # The Gumbel trick: multinomial would check its input on the host.
    noise = torch.empty_like(probs).exponential_()
    return ids.gather(1, (probs / noise).argmax(-1, keepdim=True))
