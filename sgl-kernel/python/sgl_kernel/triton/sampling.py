"""Sampling of tokens from logits on the device, with the meaning of the host's sampler.

In order: penalties, masks; temperature, top-k, top-p, min-p; the first token in vocabulary order at
which the cumulated probability exceeds ``uniform``. A row is cut into blocks of the vocabulary, a
program each, so ``greedy`` is two launches and ``sample`` at most four. None waits.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sgl_kernel.triton import checks
from sgl_kernel.triton import sampling_kernels as kernels

# Logits of a row that a program looks at: enough loads in flight, and 32 programs for 128 k logits.
BLOCK = 4096
# Bins of a row's logits by weight, the candidates that a block has room for, and the entries that
# are looked at together of all blocks' candidates.
BINS = 8
LIST = 1024
TILE = 2048
# Columns of logits: their weights' sum fits 63 bits.
LARGEST = 1 << 20


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
    if len(logits):
        tops, ids, _ = _peaks(logits)
        blocks = tops.shape[1]
        kernels.greedy[(len(logits),)](
            tops, ids, best, tokens, logits.shape[1], blocks,
            BLOCKS=triton.next_power_of_2(blocks), num_warps=1,
        )  # fmt: skip
    return best, tokens


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor,
    uniform: Tensor, *, cut: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One token a row: the row's largest logit as ``greedy`` returns it, and the token int32 [n].

    logits: float32 [n, vocab], not changed, vocab at most 2 ** 20. temperature: float32 [n], 0:
    greedy. top_k: int32 [n], 0 (or vocab and more): all. top_p, min_p: float32 [n], 1 and 0: all.
    uniform: float64 [n] in [0, 1). Equal logits are kept or left out together; one that weighs less
    than 2 ** -42 of the largest is never sampled. A row whose largest logit is NaN or infinite gets
    some id in [0, vocab), to be thrown away.
    cut: False says that no row has top-k, top-p or min-p, and saves a launch.
    """
    best, tokens = _outputs(logits)
    _vectors(logits, torch.float32, temperature=temperature, top_p=top_p, min_p=min_p)
    _vectors(logits, torch.int32, top_k=top_k)
    _vectors(logits, torch.float64, uniform=uniform)
    n, vocab = logits.shape
    if vocab > LARGEST:
        checks.fail(f"logits have {vocab} columns; at most {LARGEST} can be sampled from")
    if not n:
        return best, tokens
    tops, ids, floors = _peaks(logits)
    blocks = tops.shape[1]
    masses = torch.empty((n, blocks, BINS), dtype=torch.int64, device=logits.device)
    counts, sizes = ids.new_empty((n, blocks, BINS)), torch.empty_like(ids)
    lists = logits.new_empty((n, blocks, LIST))
    width = triton.next_power_of_2(blocks)
    shape = {"BLOCK": _block(vocab), "BLOCKS": width, "BINS": BINS}
    ends = (vocab, logits.stride(0), blocks)
    kernels.weigh[(n, blocks)](
        logits, temperature, tops, floors, masses, counts, *ends, **shape, num_warps=4
    )
    if cut:
        kernels.gather[(n, blocks)](
            logits, temperature, top_k, top_p, min_p, tops, floors, masses, counts, lists, sizes,
            *ends, **shape, LIST=LIST, num_warps=8,
        )  # fmt: skip
    kernels.choose[(n,)](
        logits, temperature, top_k, top_p, min_p, uniform, tops, ids, floors, masses, counts, lists,
        sizes, best, tokens, *ends, **shape, LIST=LIST, WIDTH=max(1, TILE // width), num_warps=8,
    )  # fmt: skip
    return best, tokens


def _peaks(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Largest logits, their ids and the least finite logits [n, blocks]."""
    n, vocab = logits.shape
    blocks = triton.cdiv(vocab, _block(vocab))
    tops, floors = logits.new_empty((n, blocks)), logits.new_empty((n, blocks))
    ids = torch.empty((n, blocks), dtype=torch.int32, device=logits.device)
    kernels.peaks[(n, blocks)](
        logits, tops, ids, floors, vocab, logits.stride(0), blocks, BLOCK=_block(vocab),
        num_warps=8,
    )  # fmt: skip
    return tops, ids, floors


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
