"""Threads: the number of CPU threads of a pass, and the current GPU of a thread."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sglang.srt.numeric.host_arrays import on_host
from sglang.srt.numeric.torch_later import torch

# Multiply-adds that one thread computes in the time of waking the others for every operation.
LIGHT = 1 << 27


def default_threads() -> int:
    """Return the default number of threads: OMP_NUM_THREADS, else one for each physical core that
    this process may use, as in torch."""
    wished = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if wished.isdecimal() and int(wished):
        return int(wished)
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    own = os.sched_getaffinity(0)
    files = [Path(f"/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list") for n in own]
    try:
        return len({file.read_text() for file in files})
    except OSError:
        return len(own)


class Threads:
    """Sets the number of torch's threads: ``fixed`` if it is not 0; else, on a CPU, 1 for a light
    pass and the default for a heavy one. The number belongs to the calling thread, so the thread
    that runs passes must call ``prepare``."""

    def __init__(self, fixed: int, parameters: int, device: Any) -> None:
        self.most = fixed or default_threads()
        self.on_host = on_host(device)
        self.adaptive = not fixed and device.type == "cpu" and self.most > 1
        self.parameters = parameters

    def prepare(self, num_tokens: int) -> None:
        """Set the number of threads for a pass over ``num_tokens`` tokens."""
        if self.on_host:
            return
        light = self.adaptive and num_tokens * self.parameters <= LIGHT
        wanted = 1 if light else self.most
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)


def make_current(device: Any) -> None:
    """Make a GPU the current one of the calling thread. Triton's kernels, events and graphs use the
    thread's current GPU, whatever the device of their tensors."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
