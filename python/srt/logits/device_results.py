"""Choice of the ``Results`` implementation for a device."""

from __future__ import annotations

from typing import Any

from sglang.srt.logits.results import Results
from sglang.srt.numeric.host_arrays import on_host


def results_of(device: Any, threads: int) -> Results:
    """Return results as arrays for ``HOST``, read by ``threads`` threads, else as tensors."""
    if on_host(device):
        from sglang.srt.logits.host_results import HostResults

        return HostResults(threads)
    from sglang.srt.logits.torch_results import TorchResults

    return TorchResults(device)
