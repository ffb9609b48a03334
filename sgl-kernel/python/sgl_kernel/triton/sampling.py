"""Sampling of tokens from logits on the device, with the meaning of the host's sampler.

In order: penalties, masks; temperature, top-k, top-p, min-p; the first token in vocabulary order at
which the cumulated probability exceeds ``uniform``. Each function is one launch; none waits.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sgl_kernel.triton import checks
from sgl_kernel.triton import sampling_kernels as kernels

# Logits of a row that a program looks at at once: enough loads in flight for one multiprocessor.
BLOCK = 4096


def penalise(
    logits: Tensor, rows: Tensor, ids: Tensor, counts: Tensor, repetition: Tensor,
    frequency: Tensor, presence: Tensor,
) -> None:  # fmt: skip
    """Change P different (row, id) in place: divide (negative: multiply) by the row's repetition
    penalty (CTRL, Keskar et al. 2019), subtract frequency * count, and presence where count > 0.

    logits: float32 [n, vocab]. rows, ids, counts: int32 [P]; count: how often the row has
    sampled the id, 0 for an id of its prompt alone. repetition, frequency, presence: float32 [n].
    """
    _logits(logits)
    checks.integers(len(rows), rows=rows, ids=ids, counts=counts)
    _vectors(logits, torch.float32, repetition=repetition, frequency=frequency, presence=presence)
    checks.same_device(logits, rows=rows, ids=ids, counts=counts)
    if len(rows) and len(logits):
        kernels.penalise[(triton.cdiv(len(rows), 256),)](
            logits, rows, ids, counts, repetition, frequency, presence, len(rows),
            logits.stride(0), BLOCK=256, num_warps=4,
        )  # fmt: skip


def apply_mask(logits: Tensor, mask: Tensor, rows: Tensor | None = None) -> None:
    """Set logits to -inf in place where the bit is 0. mask: int32 [m, ceil(vocab / 32)], bit ``j %
    32`` of word ``j // 32``. rows: int32 [m], which rows of logits they are for (None: row i for
    mask i)."""
    _logits(logits)
    n, vocab = logits.shape
    checks.dtype("mask", mask, torch.int32)
    checks.shape("mask", mask, n if rows is None else None, -(-vocab // 32))
    checks.same_device(logits, mask=mask, rows=rows)
    if rows is not None:
        checks.integers(len(mask), rows=rows)
    block = _block(vocab)
    if mask.numel():
        kernels.apply_mask[(len(mask), triton.cdiv(vocab, block))](
            logits, mask, rows, vocab, logits.stride(0), mask.stride(0), BLOCK=block,
            ROWS=rows is not None, num_warps=8,
        )  # fmt: skip


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit (NaN where the row has one) float32 [n], and its lowest id int32 [n].

    logits: float32 [n, vocab], vocab contiguous.
    """
    best, tokens = _outputs(logits)
    vocab = logits.shape[1]
    if len(logits):
        kernels.greedy[(len(logits),)](
            logits, best, tokens, vocab, logits.stride(0), BLOCK=_block(vocab), num_warps=16
        )
    return best, tokens


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor,
    uniform: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One token a row: the row's largest logit as ``greedy`` returns it, and the token int64 [n].

    logits: float32 [n, vocab], not changed. temperature: float32 [n], 0: greedy. top_k: int32 [n],
    0 (or vocab and more): all. top_p, min_p: float32 [n], 1 and 0: all. uniform: float64 [n] in
    [0, 1). Equal logits are kept or left out together. A row whose largest logit is NaN or infinite
    gets some id in [0, vocab), to be thrown away.
    """
    best, tokens = _outputs(logits)
    _vectors(logits, torch.float32, temperature=temperature, top_p=top_p, min_p=min_p)
    _vectors(logits, torch.int32, top_k=top_k)
    _vectors(logits, torch.float64, uniform=uniform)
    vocab = logits.shape[1]
    if len(logits):
        kernels.sample[(len(logits),)](
            logits, temperature, top_k, top_p, min_p, uniform, best, tokens, vocab,
            logits.stride(0), BLOCK=_block(vocab), num_warps=16,
        )  # fmt: skip
    return best, tokens


def _block(vocab: int) -> int:
    return min(BLOCK, int(triton.next_power_of_2(vocab)))


def _logits(logits: Tensor) -> None:
    checks.dtype("logits", logits, torch.float32)
    checks.shape("logits", logits, None, None)
    if not logits.shape[1]:
        checks.fail("logits have no columns; the vocabulary is empty")


def _outputs(logits: Tensor) -> tuple[Tensor, Tensor]:
    _logits(logits)
    n = len(logits)
    return logits.new_empty(n), torch.empty(n, dtype=torch.int32, device=logits.device)


def _vectors(logits: Tensor, wanted: torch.dtype, **tensors: Tensor) -> None:
    for name, x in tensors.items():
        checks.dtype(name, x, wanted)
        checks.shape(name, x, len(logits))
    checks.same_device(logits, **tensors)
