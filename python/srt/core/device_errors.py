"""Device errors: recognises exceptions after which this process cannot use its GPU any more.

Most CUDA errors concern one call: too little memory, wrong arguments. After others (an illegal
access, a failed assertion in a kernel, an ECC fault) every later call of the process returns the
same error, and the documentation of ``cudaError_t`` says that the process must end. Libraries have
their own texts for errors, so an exception without an error number is searched for the driver's
text.
"""

from __future__ import annotations

from collections.abc import Iterator

LOST = {
    214: "uncorrectable ECC error encountered",
    220: "uncorrectable NVLink error detected during the execution",
    226: "Invalid access of peer GPU memory over nvlink or a hardware error",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    709: "context is destroyed",
    710: "device-side assert triggered",
    714: "hardware stack error",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    721: "tensor memory not completely freed",
    999: "CUDA error: unknown error",
}
"""Errors after which the process must end, by their number (``cudaError_t``), with the text of
``cudaGetErrorString``."""


class DeviceLost(RuntimeError):
    """This process cannot use its device any more."""


def lost_device(error: BaseException) -> str:
    """Return the driver's text of the error after which the device is unusable, found in ``error``
    or its causes; "" if the device is still usable."""
    for one in _chain(error):
        if isinstance(one, DeviceLost):
            return str(one)
        if not isinstance(one, RuntimeError):  # other errors may quote such words from a request
            continue
        number = getattr(one, "error_code", None)  # torch.AcceleratorError has it
        if number in LOST:
            return LOST[number]
        text = str(one)
        for cause in LOST.values():
            if cause in text:
                return cause
    return ""


def out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` or a cause of it is a lack of memory, also of a CUDA library."""
    return any(
        isinstance(one, MemoryError)
        or type(one).__name__ == "OutOfMemoryError"
        or (isinstance(one, RuntimeError) and "out of memory" in str(one))
        or (isinstance(one, RuntimeError) and "CUBLAS_STATUS_ALLOC_FAILED" in str(one))
        for one in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception, then its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
