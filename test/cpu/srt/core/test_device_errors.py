"""Errors of devices, as torch and the libraries above it word them."""

from __future__ import annotations

import pytest
import torch
from sglang.srt.core.device_errors import LOST, lost_device, out_of_memory


def accelerator(text: str, number: int | None = None) -> torch.AcceleratorError:
    """The error as torch makes it: the number is an attribute where CUDA gave one."""
    error = torch.AcceleratorError(text)
    if number is not None:
        error.error_code = number  # type: ignore[attr-defined]
    return error


HINT = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)


@pytest.mark.parametrize(
    "error",
    [
        accelerator(f"CUDA error: an illegal memory access was encountered{HINT}"),
        accelerator("CUDA error", 710),
        RuntimeError(f"CUDA error: device-side assert triggered{HINT}"),
        RuntimeError("Triton Error [CUDA]: misaligned address"),
        RuntimeError("CUDA driver error: unspecified launch failure"),
        RuntimeError(
            "BatchPrefillWithPagedKVCache failed with error: uncorrectable ECC error encountered"
        ),
        RuntimeError("CUDA error: unknown error"),
    ],
)
def test_what_the_process_does_not_survive(error: Exception) -> None:
    assert lost_device(error)
    assert not out_of_memory(error)
    outer = RuntimeError("the pass failed")
    outer.__cause__ = error
    assert lost_device(outer) == lost_device(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError("no room"),
    ],
)
def test_memory_that_is_short_is_not_a_lost_device(error: Exception) -> None:
    assert not lost_device(error)
    assert out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        accelerator(f"CUDA error: invalid configuration argument{HINT}", 9),
        accelerator("CUDA error: operation not permitted when stream is capturing", 900),
        RuntimeError("CUDA error: no kernel image is available for execution on the device"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"),
        RuntimeError("an unknown error"),
        ValueError("a prompt that says: CUDA error: device-side assert triggered"),
        KeyError(700),
    ],
)
def test_errors_of_one_call_are_neither(error: Exception) -> None:
    assert not lost_device(error)
    assert not out_of_memory(error)


def test_a_cause_that_is_its_own_cause_ends() -> None:
    first, second = RuntimeError("one"), RuntimeError("two")
    first.__cause__, second.__cause__ = second, first
    assert not lost_device(first)


@pytest.mark.parametrize("number", LOST)
def test_every_number_counts(number: int) -> None:
    assert lost_device(accelerator("CUDA error", number)) == LOST[number]
