"""Device errors: which exceptions mean that this process can no longer use its GPU.

Most errors of CUDA concern one call: memory that is not there, arguments that are wrong. After some
(an illegal access, an assertion in a kernel, an ECC fault) every later call of the process returns
the same error, whatever it does: the documentation of ``cudaError_t`` says that the process must
end. Libraries word errors in their own way, so the driver's text is searched where there is no
number.
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
    """The device can compute nothing any more in this process."""


def lost_device(error: BaseException) -> str:
    """Return what took the device away, in the driver's words; "" where ``error`` did not. Its
    causes count too."""
    for one in _chain(error):
        if isinstance(one, DeviceLost):
            return str(one)
        if not isinstance(one, RuntimeError):  # a text of a request, say, may hold such words
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
    """Return whether a device, or a library's workspace on it, had no memory left."""
    return any(
        isinstance(one, MemoryError)
        or type(one).__name__ == "OutOfMemoryError"
        or (isinstance(one, RuntimeError) and "out of memory" in str(one))
        or (isinstance(one, RuntimeError) and "CUBLAS_STATUS_ALLOC_FAILED" in str(one))
        for one in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, then its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
