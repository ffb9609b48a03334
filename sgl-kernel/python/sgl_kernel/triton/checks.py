"""Checks of every launch's tensors, with messages that name the argument."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def fail(problem: str) -> NoReturn:
    raise ValueError(problem)


def shape(name: str, x: Tensor, *wanted: int | None) -> None:
    """``None`` stands for any size; the last dimension must be contiguous."""
    if x.ndim != len(wanted) or any(w not in (None, n) for w, n in zip(wanted, x.shape)):
        shown = ", ".join("*" if w is None else str(w) for w in wanted)
        fail(f"{name} has shape {list(x.shape)}; [{shown}] is needed")
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        fail(f"{name} has stride {x.stride(-1)} in its last dimension; call .contiguous() first")


def dtype(name: str, x: Tensor, *wanted: torch.dtype) -> None:
    if x.dtype not in wanted:
        fail(f"{name} is {x.dtype}; one of {', '.join(map(str, wanted))} is needed")


def same_device(first: Tensor, **others: Tensor | None) -> None:
    """All on ``first``'s device. Where that is the CPU, only Triton's interpreter can launch."""
    for name, x in others.items():
        if x is not None and x.device != first.device:
            fail(f"{name} is on {x.device} but the first argument on {first.device}")


def integers(length: int | None, **tensors: Tensor) -> None:
    """Contiguous int32 vectors, of ``length`` where it is not None."""
    for name, x in tensors.items():
        dtype(name, x, torch.int32)
        shape(name, x, length)


def output(out: Tensor | None, like: Tensor, *sizes: int) -> Tensor:
    """``out`` after a check, or a new tensor of dtype and device of ``like``."""
    if out is None:
        return like.new_empty(sizes)
    shape("out", out, *sizes)
    dtype("out", out, like.dtype)
    same_device(like, out=out)
    return out
