"""The C++ part: whether it was built, and which instruction set it uses."""

from __future__ import annotations

import os
import warnings
from typing import Any

_C: Any
try:
    from sgl_kernel import _C
except ImportError as error:  # built without a compiler
    _C, WHY = None, str(error)
else:
    WHY = ""

AVAILABLE = _C is not None


def need() -> Any:
    """The extension. Raises RuntimeError where it is not there."""
    if _C is None:
        raise RuntimeError(
            f"the native part of sgl-kernel is missing ({WHY}); install a C++ compiler and run "
            "SGL_KERNEL_REQUIRE=1 pip install --force-reinstall ./sgl-kernel"
        )
    return _C


def isas() -> list[str]:
    """Instruction sets that this machine has kernels for, best first. The last one may be
    ``amx_emulated``, which exists for tests and is never chosen by itself."""
    out: list[str] = []
    while _C is not None and (name := _C.available(len(out))) is not None:
        out.append(name)
    return out


def isa() -> str:
    """Name of the instruction set in use: the best one, that of ``SGL_KERNEL_ISA`` or of
    ``choose``; "" where there are no kernels."""
    return "" if _C is None else _C.isa()


def choose(name: str = "") -> None:
    """Use an instruction set; "": the best. What was packed for another one must be packed anew.

    Raises ValueError where this machine does not have it.
    """
    if not need().choose(name):
        raise ValueError(f"no kernels for {name!r} on this machine; there are {', '.join(isas())}.")


def cores() -> int:
    """Cores this process may use: a sensible number of threads."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_wish = os.environ.get("SGL_KERNEL_ISA", "")
if AVAILABLE and _wish and _wish != _C.isa():
    warnings.warn(
        f"SGL_KERNEL_ISA is {_wish!r}, which this machine has no kernels for; {_C.isa()} is used. "
        f"There are {', '.join(isas())}.", RuntimeWarning, stacklevel=2,
    )  # fmt: skip
