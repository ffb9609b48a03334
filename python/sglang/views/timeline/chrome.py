"""Chrome: a trace in the Trace Event Format, which Perfetto and chrome://tracing read.

A run is a process, and each of its lanes a thread, so that spans nest. The program itself is the
first thread. Forks and joins are flows. Both ends of a flow must be inside a span, so each lane has
a span from its begin to the run's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang.backend.answer_facts import COUNTS
from sglang.run.trace_record import TraceRecord
from sglang.views.timeline.trace_view import view_of

PROGRAM = 0  # the thread of the program itself
Object = dict[str, Any]


def chrome_trace(trace: TraceRecord) -> Object:
    """Return a trace in the JSON object format, with times in microseconds."""
    view = view_of(trace)
    homes = {lane["number"]: lane["group"] for lane in view["lanes"]}
    events = [*_names(view)]
    for span in view["spans"]:
        events += _span(span, homes)
    events += _flows(view, homes)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"producer": "sglang", **_plain(view["totals"])},
    }


def _names(view: Object) -> Iterator[Object]:
    for group in view["groups"]:
        pid = group["number"]
        title = f"{group['name']}({group['arguments']})"
        yield _named("process_name", pid, PROGRAM, {"name": title})
        yield _named("process_sort_index", pid, PROGRAM, {"sort_index": pid})
        yield _named("thread_name", pid, PROGRAM, {"name": "program"})
        yield {
            "ph": "X", "cat": "run", "name": title, "pid": pid, "tid": PROGRAM,
            **_times(group["begin"], group["end"]), "args": {"status": group["status"]},
        }  # fmt: skip
    ends = {group["number"]: group["end"] for group in view["groups"]}
    for lane in view["lanes"]:
        pid, tid = lane["group"], lane["number"]
        yield _named("thread_name", pid, tid, {"name": lane["label"]})
        yield _named("thread_sort_index", pid, tid, {"sort_index": tid})
        if lane["begin"] is not None:
            yield {
                "ph": "X", "cat": "lane", "name": lane["label"], "pid": pid, "tid": tid,
                **_times(lane["begin"], ends[pid]), "args": {"status": lane["status"]},
            }  # fmt: skip


def _named(name: str, pid: int, tid: int, args: Object) -> Object:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _times(begin: float, end: float) -> Object:
    """Return begin and duration in whole nanoseconds, so that rounding keeps spans nested."""
    first, last = _nanoseconds(begin), _nanoseconds(end)
    return {"ts": first / 1e3, "dur": max(last - first, 0) / 1e3}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _span(span: Object, homes: dict[int, int]) -> Iterator[Object]:
    if span["kind"] == "wait":  # several threads may wait at once, so these spans do not nest
        return
    lane, data = span["lane"], span["data"]
    thread = PROGRAM if span["kind"] == "code" else lane
    args = {name: data[name] for name in (*COUNTS, "finish", "prompt", "params") if name in data}
    args |= {name: span[name] for name in ("status", "error", "source", "cost") if span.get(name)}
    if outputs := data.get("outputs"):
        args["outputs"] = {output["name"] or "text": output["text"] for output in outputs}
    event = {
        "ph": "X",
        "cat": span["kind"],
        "pid": homes[lane],
        "tid": thread,
    }
    title = f"{span['kind']} {span['name']}".strip()
    yield {**event, "name": title, **_times(span["begin"], span["end"]), "args": args}
    for name, begin, end in span.get("phases", ()):
        phase = {"cat": "phase", "name": name, **_times(begin, end), "args": {}}
        yield {**event, **phase}


def _flows(view: Object, homes: dict[int, int]) -> Iterator[Object]:
    number = 0
    for lane in view["lanes"]:
        if lane["parent"] is not None and lane["begin"] is not None:
            number += 1
            at = lane["begin"]
            yield from _flow(number, "fork", homes, (lane["parent"], at), (lane["number"], at))
    for join in view["joins"]:
        for lane in join["lanes"]:
            number += 1
            yield from _flow(number, "join", homes, (lane, join["at"]), (join["lane"], join["at"]))


def _flow(
    number: int, name: str, homes: dict[int, int], here: tuple[int, float], there: tuple[int, float]
) -> Iterator[Object]:
    for phase, (lane, at) in (("s", here), ("f", there)):
        yield {
            "ph": phase, "id": number, "cat": "flow", "name": name, "pid": homes[lane],
            "tid": lane, "ts": _nanoseconds(at) / 1e3, **({"bp": "e"} if phase == "f" else {}),
        }  # fmt: skip


def _plain(totals: Object) -> Object:
    return {name: value for name, value in totals.items() if isinstance(value, (int, float))}
