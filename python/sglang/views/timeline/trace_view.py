"""View: a trace with derived data for all renderings: phases and cost of requests, spans of the
program's own code, the critical path, sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sglang.backend.answer_facts import COUNTS
from sglang.run.trace_record import TraceRecord
from sglang.views.timeline.critical import critical_path
from sglang.views.timeline.verify import NODES

CODE_SECONDS = 0.001  # least duration of a span of the program's own code
Interval = tuple[float, float]
Object = dict[str, Any]


def view_of(trace: TraceRecord) -> Object:
    """Return plain data: ``groups``, ``lanes``, ``joins`` and ``spans`` of ``Trace.to_dict``,
    without unused forks, and in addition

    - requests have ``phases``, (name, begin, end) in order, and with prices ``cost``;
    - nodes have the sums of their requests, and ``critical`` if they are on the critical path;
    - spans of kind "code" are added, lanes have a ``label`` and a ``depth``;
    - ``totals``: sums over all runs.
    """
    view = trace.to_dict()
    _drop_silent(view)
    _label(view["lanes"])
    nodes = {span["number"]: span for span in view["spans"] if span["kind"] in NODES}
    for span in view["spans"]:
        if span["kind"] == "request":
            span["phases"] = phases(span)
            if trace.prices:
                span["cost"] = cost(span["data"], trace.prices)
            if span["parent"] in nodes:
                _add(nodes[span["parent"]], span)
    view["spans"] += _code(view)
    for number in critical_path(view):
        nodes[number]["critical"] = True
    view["totals"] = _totals(view)
    return view


def phases(request: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return the phases of a request, (name, begin, end).

    With the server's times: send, queue, prefill, decode, reply. With only the time of the first
    text: first token, decode. Otherwise one phase "model".
    """
    data, begin, end = request["data"], request["begin"], request["end"]
    first, done = data.get("first"), data.get("done", end)
    if "scheduled" in data:
        drawn = done if first is None else first
        marks = [("send", data["received"]), ("queue", data["scheduled"]), ("prefill", drawn),
                 ("decode", done), ("reply", end)]  # fmt: skip
    elif first is not None:
        marks = [("first token", first), ("decode", end)]
    else:
        marks = [("model", end)]
    found = []
    for name, mark in marks:
        mark = min(max(mark, begin), end)
        if mark > begin:
            found.append((name, begin, mark))
            begin = mark
    return found


def cost(data: Mapping[str, Any], prices: Mapping[str, float]) -> float:
    """Return dollars. Without a price for "cached", cached tokens have the price of "input"."""
    prompt, cached = data.get("prompt_tokens", 0), data.get("cached_tokens", 0)
    of_input = prices.get("input", 0.0)
    dollars = max(prompt - cached, 0) * of_input + cached * prices.get("cached", of_input)
    dollars += data.get("completion_tokens", 0) * prices.get("output", 0.0)
    return float(dollars) / 1e6


def _add(node: Object, request: Object) -> None:
    for name in COUNTS:
        if name in request["data"]:
            node["data"][name] = node["data"].get(name, 0) + request["data"][name]
    if "cost" in request:
        node["cost"] = node.get("cost", 0.0) + request["cost"]
    node.setdefault("requests", []).append(request["number"])


def _drop_silent(view: Object) -> None:
    """Remove lanes of forks without spans, joins or errors, such as internal copies.

    A wait for such a fork becomes a wait for its parent lane.
    """
    busy = {span["lane"] for span in view["spans"] if span["kind"] != "wait"}
    busy |= {number for join in view["joins"] for number in (join["lane"], *join["lanes"])}
    silent: dict[int, int] = {}
    for lane in sorted(view["lanes"], key=lambda lane: -lane["number"]):  # before its parent
        if lane["parent"] is None or lane["number"] in busy or lane["status"] != "ok":
            busy.add(lane["parent"])
        else:
            silent[lane["number"]] = lane["parent"]
    view["lanes"] = [lane for lane in view["lanes"] if lane["number"] not in silent]
    for span in view["spans"]:
        while span["lane"] in silent:
            span["lane"] = silent[span["lane"]]


def _label(lanes: Sequence[Object]) -> None:
    """Set labels: ``main``, ``fork 0``, ``fork 0.2``; ``fork 0 (2)`` for a lane's second fork."""
    known: dict[int, Object] = {}
    seen: Counter[tuple[int, str]] = Counter()
    for lane in sorted(lanes, key=lambda lane: lane["number"]):
        parent = known.get(lane["parent"])
        if parent is None:
            lane["path"], lane["label"] = (), "main"
        elif not lane["source"]:
            lane["path"], lane["label"] = (*parent["path"], 0), "called"
        else:
            lane["path"] = (*parent["path"], lane["index"])
            lane["label"] = "fork " + ".".join(map(str, lane["path"]))
        place = lane["group"], lane["label"]
        seen[place] += 1
        if seen[place] > 1:
            lane["label"] += f" ({seen[place]})"
        lane["depth"] = len(lane["path"])
        known[lane["number"]] = lane
    for lane in lanes:
        del lane["path"]


def _code(view: Object) -> list[Object]:
    """Return spans for the times in which the program ran and did not wait for a lane or for an
    inner run."""
    homes = {lane["number"]: lane["group"] for lane in view["lanes"]}
    roots = {lane["group"]: lane["number"] for lane in view["lanes"] if lane["parent"] is None}
    groups = {group["number"]: group for group in view["groups"]}
    idle: dict[int, list[Interval]] = defaultdict(list)
    for span in view["spans"]:
        group = groups[homes[span["lane"]]]
        if span["kind"] == "wait" or (group["inline"] and span["kind"] in NODES):
            idle[group["number"]].append((span["begin"], span["end"]))
    for group in view["groups"]:
        if group["parent"] is not None:
            idle[group["parent"]].append((group["begin"], group["end"]))
    found = []
    for number, group in groups.items():
        for begin, end in gaps((group["begin"], group["end"]), idle[number]):
            if end - begin >= CODE_SECONDS and number in roots and group["name"]:
                found.append(_code_span(roots[number], begin, end))
    return found


def _code_span(lane: int, begin: float, end: float) -> Object:
    return {
        "number": 0, "lane": lane, "kind": "code", "name": "program", "begin": begin, "end": end,
        "parent": None, "status": "ok", "error": "", "source": "", "code": "", "data": {},
    }  # fmt: skip


def gaps(whole: Interval, taken: Iterable[Interval]) -> list[Interval]:
    """Return the parts of ``whole`` that no interval covers."""
    at, found = whole[0], []
    for begin, end in sorted(taken):
        if begin > at:
            found.append((at, min(begin, whole[1])))
        at = max(at, end)
        if at >= whole[1]:
            return found
    return [*found, (at, whole[1])] if at < whole[1] else found


def _totals(view: Object) -> Object:
    spans, groups = view["spans"], view["groups"]
    requests = [span for span in spans if span["kind"] == "request"]
    nodes = [span for span in spans if span["kind"] in NODES]
    totals: Object = {
        "wall_seconds": _wall(groups),
        "model_seconds": sum(span["end"] - span["begin"] for span in requests),
        "code_seconds": _lengths(span for span in spans if span["kind"] == "code"),
        "tool_seconds": _lengths(span for span in nodes if span["kind"] == "tool"),
        "critical_seconds": _lengths(span for span in nodes if span.get("critical")),
        "runs": len(groups),
        "requests": len(requests),
        "errors": sum(span["status"] == "error" for span in nodes),
        "cancelled": sum(span["status"] == "cancelled" for span in nodes),
        "reused": sum(out["reused"] for span in nodes for out in span["data"].get("outputs", ())),
    }
    for name in COUNTS:
        totals[name] = sum(span["data"].get(name, 0) for span in requests)
    told = [s["data"] for s in requests if "cached_tokens" in s["data"]]
    prompt = sum(data.get("prompt_tokens", 0) for data in told)
    totals["hit_rate"] = totals["cached_tokens"] / prompt if prompt else None
    totals["cost"] = sum(s["cost"] for s in requests) if view["prices"] else None
    times: dict[str, float] = defaultdict(float)
    for span in requests:
        for name, begin, end in span["phases"]:
            times[name] += end - begin
    totals["phase_seconds"] = dict(times)
    return totals


def _lengths(spans: Iterable[Object]) -> float:
    return float(sum(span["end"] - span["begin"] for span in spans))


def _wall(groups: Sequence[Object]) -> float:
    if not groups:
        return 0.0
    return float(max(g["end"] for g in groups) - min(g["begin"] for g in groups))
