"""Threads: how many compute a pass, and on which GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sglang.srt.numeric.host_arrays import on_host
from sglang.srt.numeric.torch_later import torch

# Multiply-adds that one thread does in the time it takes to wake the others at every operation.
LIGHT = 1 << 27


def default_threads() -> int:
    """Threads where none are set: OMP_NUM_THREADS, else one for each core that this process may
    use, as torch has them."""
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
    """Number of torch's threads: always ``fixed`` where that is set; else one thread for a light
    pass and torch's own number for a heavy one. Set in the thread that runs the passes: others keep
    theirs."""

    def __init__(self, fixed: int, parameters: int, device: Any) -> None:
        self.most = fixed or default_threads()
        self.on_host = on_host(device)
        self.adaptive = not fixed and device.type == "cpu" and self.most > 1
        self.parameters = parameters

    def prepare(self, num_tokens: int) -> None:
        """Set the threads before a pass over ``num_tokens`` tokens."""
        if self.on_host:
            return
        light = self.adaptive and num_tokens * self.parameters <= LIGHT
        wanted = 1 if light else self.most
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)


def make_current(device: Any) -> None:
    """Make a GPU the calling thread's current one: Triton's kernels, events and captured graphs
    take that one, wherever their tensors are. Every thread has a current GPU of its own."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
