"""Critical path: the chain of nodes, each waiting for its predecessor, that decides a run's end."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import Any

from sglang.views.timeline.verify import NODES

SLACK = 1e-4  # tolerated difference in seconds between times that two threads record
Object = dict[str, Any]


def critical_path(view: Object) -> list[int]:
    """Return the numbers of the path's nodes, last first; each outermost run has its own path.

    The path starts at the node that ended last. It goes back to the latest node for which that
    node can have waited: an earlier one of its lane, one before the fork in the parent lane, or
    one in a lane that was read or joined before.
    """
    return [number for run in _runs(view) for number in run.path()]


class _PathRun:
    """One outermost run, with the runs inside it."""

    def __init__(self) -> None:
        self.nodes: dict[int, list[Object]] = defaultdict(list)  # by lane, sorted by end
        self.parents: dict[int, tuple[int, float]] = {}  # by lane, its parent and time of the fork
        self.links: dict[int, list[float]] = defaultdict(list)  # by lane, times of reads and joins

    def path(self) -> list[int]:
        ends: dict[int, list[float]] = {}
        for lane, nodes in self.nodes.items():
            nodes.sort(key=lambda node: node["end"])
            ends[lane] = [node["end"] for node in nodes]
        for times in self.links.values():
            times.sort()
        node = max((found[-1] for found in self.nodes.values()), key=_end, default=None)
        path: list[int] = []
        while node is not None:
            path.append(node["number"])
            node = self._before(node, ends)
        return path

    def _before(self, node: Object, ends: dict[int, list[float]]) -> Object | None:
        begin, lane = node["begin"] + SLACK, node["lane"]
        limits = {lane: begin}
        while lane in self.parents:
            lane, left = self.parents[lane]
            limits.setdefault(lane, min(left + SLACK, begin))
        for other, times in self.links.items():
            place = bisect_right(times, begin)
            if place:
                limits[other] = max(limits.get(other, 0.0), times[place - 1] + SLACK)
        best: Object | None = None
        for other, limit in limits.items():
            if other not in ends:
                continue
            place = bisect_right(ends[other], min(limit, begin)) - 1
            # The node must end strictly earlier, so that the walk ends for any recorded times.
            while place >= 0 and _end(self.nodes[other][place]) >= node["end"]:
                place -= 1
            if place >= 0 and (best is None or ends[other][place] > best["end"]):
                best = self.nodes[other][place]
        return best


def _end(node: Object) -> float:
    return float(node["end"])


def _runs(view: Object) -> list[_PathRun]:
    groups = {group["number"]: group for group in view["groups"]}
    roots = {lane["group"]: lane["number"] for lane in view["lanes"] if lane["parent"] is None}
    runs: dict[int, _PathRun] = {}
    homes: dict[int, _PathRun] = {}

    def outermost(number: int) -> int:
        while groups[number]["parent"] in groups:
            number = groups[number]["parent"]
        return number

    for lane in view["lanes"]:
        run = runs.setdefault(outermost(lane["group"]), _PathRun())
        homes[lane["number"]] = run
        group = groups[lane["group"]]
        if lane["parent"] is not None:
            begin = lane["asked"] if lane["begin"] is None else lane["begin"]
            run.parents[lane["number"]] = (lane["parent"], begin)
        elif group["parent"] in roots:
            run.parents[lane["number"]] = (roots[group["parent"]], group["begin"])
            run.links[lane["number"]].append(group["end"])
    for join in view["joins"]:
        for number in join["lanes"]:
            homes[number].links[number].append(join["at"])
    for span in view["spans"]:
        if span["kind"] == "wait":
            homes[span["lane"]].links[span["lane"]].append(span["end"])
        elif span["kind"] in NODES:
            homes[span["lane"]].nodes[span["lane"]].append(span)
    return list(runs.values())
