"""Timing: seconds of a kernel on the device, and of its launch on the host.

A kernel of a few microseconds is shorter than its launch from Python, so events around one call
measure Python. Here a CUDA graph of twenty calls is captured and replayed. The calls take turns
among copies of their data that together exceed the second-level cache, so that each reads from
memory as the layers of a model do.

    graph     a captured graph of calls, replayed between two events
    events    the calls one by one between two events, where they cannot be captured
    clock     without a GPU: the host's clock
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmark.gpu.bench import Bench

CALLS = 20
CACHE = 60 << 20  # bytes of an H100's or H200's second-level cache (50 and 60 MB)
MOST = 64  # copies of the data
Work = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """A measured time.

    Attributes:
        seconds: time of one call on the device, the median of several rounds.
        host: seconds that the host takes to launch one call without a graph.
        how: how it was measured: "graph", "events" or "clock".
    """

    seconds: float
    host: float
    how: str


def copies(size: int, memory: int = 8 << 30) -> int:
    """Copies of data of ``size`` bytes of which all but one exceed the cache, within ``memory``
    bytes."""
    needed = 1 + -(-CACHE // max(size, 1))
    return max(1, min(needed, MOST, memory // max(size, 1)))


def timed(bench: Bench, works: Sequence[Work], longest: float = 0.5) -> Timing:
    """Time the calls ``works`` in turn: the same call on several copies of its data.

    Rounds are fewer where they would take more than ``longest`` seconds. Raises what a call raises
    outside of a capture.
    """
    calls = [works[i % len(works)] for i in range(1 if bench.tiny else max(CALLS, len(works)))]
    for work in works[:2]:  # compiles, and makes the libraries' workspaces
        work()
    bench.sync()
    host = _host(bench, calls)
    if not bench.on_gpu:
        return Timing(_clock(calls), host, "clock")
    replay, how = _captured(bench, calls)
    first = _events(replay)
    rounds = max(3, min(20, int(longest / max(first, 1e-6))))
    seconds = statistics.median(_events(replay) for _ in range(rounds))
    return Timing(seconds / len(calls), host, how)


def _host(bench: Bench, calls: Sequence[Work]) -> float:
    """Seconds to launch one call. Twenty fit into the device's queue, so nothing waits."""
    found = []
    for _ in range(1 if bench.tiny else 3):
        began = time.perf_counter()
        for work in calls[:CALLS]:
            work()
        found.append((time.perf_counter() - began) / len(calls[:CALLS]))
        bench.sync()
    return min(found)


def _clock(calls: Sequence[Work]) -> float:
    began = time.perf_counter()
    for work in calls:
        work()
    return (time.perf_counter() - began) / len(calls)


def _captured(bench: Bench, calls: Sequence[Work]) -> tuple[Work, str]:
    """A replay of the calls; the calls themselves, with a remark, where capture fails."""
    stream, graph = torch.cuda.Stream(bench.device), torch.cuda.CUDAGraph()
    current = torch.cuda.current_stream(bench.device)
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            calls[0]()
        bench.sync()
        with torch.cuda.graph(graph, stream=stream):
            for work in calls:
                work()
    except Exception as error:  # a kernel that synchronises, a plan made inside
        torch.cuda.set_stream(current)  # a capture that fails may leave its own
        bench.failed("not captured, timed by events", error)
        bench.sync()
        return lambda: [work() for work in calls], "events"
    return graph.replay, "graph"


def _events(work: Work) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3
