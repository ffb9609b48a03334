"""Verify: checks that the content of a file is a valid trace. A file may hold anything."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from sglang.backend.answer_facts import COUNTS
from sglang.run.trace_record import TraceGroup, TraceLane, TraceRecord, TraceSpan

Part = TypeVar("Part")
LARGEST = 2**64  # largest number: seeds have 64 bits
NODES = ("gen", "select", "commit", "tool")  # kinds of spans that a lane has waited for
KINDS = (*NODES, "request", "wait")
# Fields by how they are annotated.
TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (int, float), "str": (str,), "bool": (bool,),
    "int | None": (int, type(None)), "float | None": (int, float, type(None)),
    "list[int]": (list,), "dict[str, Any]": (dict,),
}  # fmt: skip
# Fields of a span's ``data`` that readers use.
DATA = {
    **dict.fromkeys(("received", "scheduled", "first", "done"), "float"),
    **dict.fromkeys(COUNTS, "int"),
    "rows": "int", "finish": "str", "prompt": "str", "prompt_chars": "int",
    "params": "dict[str, Any]", "sampling": "dict[str, Any]",
}  # fmt: skip
OUTPUT = {"name": "str", "text": "str", "chars": "int", "reused": "bool"}
SOURCE = re.compile(r"(.*:[0-9]{1,9})?", re.DOTALL)  # a file's name may have any character
TRACE_ID = re.compile("[0-9a-f]{32}")


def part(kind: type[Part], item: Any) -> Part:
    """Return ``item``, read from a file, as a ``kind``: a group, a lane, a join or a span. Raises
    ValueError if a field has the wrong type, and TypeError if a field is missing."""
    kinds = {f.name: str(f.type) for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    _typed(item, kinds)
    return kind(**{name: value for name, value in item.items() if name in kinds})


def verify(trace: TraceRecord) -> None:
    """Raise ValueError if a trace refers to an unknown number, or a span is malformed."""
    _number(trace.started)
    if not TRACE_ID.fullmatch(trace.trace_id):
        raise ValueError(f"the trace is damaged: trace_id is {trace.trace_id!r:.60}")
    groups, lanes = _numbers(trace.groups), _numbers(trace.lanes)
    spans = _numbers(trace.spans)
    nodes = {span.number for span in trace.spans if span.kind in NODES}
    good = (
        all(lane.group in groups for lane in trace.lanes)
        and all(lane.parent is None or lane.parent in lanes for lane in trace.lanes)
        and all(span.lane in lanes for span in trace.spans)
        and all(span.parent is None or span.parent in spans for span in trace.spans)
        and all(span.parent in nodes for span in trace.spans if span.kind == "request")
        and all(
            number in lanes for join in trace.joins for number in _ints([join.lane, *join.lanes])
        )
    )
    if not good:
        raise ValueError("the trace is damaged: a lane, a run or a span that it names is not in it")
    for span in trace.spans:
        if span.kind not in KINDS:
            raise ValueError(f"the trace is damaged: {span.kind!r:.60} is no kind of span")
        if not SOURCE.fullmatch(span.source):
            raise ValueError(f"the trace is damaged: source is {span.source!r:.60}")
        _data(span.data)


def _numbers(parts: Iterable[TraceGroup | TraceLane | TraceSpan]) -> set[int]:
    """Return all numbers. A parent comes before its children, so that no part is its own parent."""
    found: set[int] = set()
    for one in parts:
        if one.number in found or (one.parent is not None and one.parent >= one.number):
            raise ValueError(f"the trace is damaged: number {one.number} is there twice, or "
                             "before what it is part of")  # fmt: skip
        found.add(one.number)
    return found


def _data(data: Mapping[str, Any]) -> None:
    _typed(data, DATA)
    if "scheduled" in data and "received" not in data:
        raise ValueError("the trace is damaged: a request was scheduled and not received")
    outputs = data.get("outputs", [])
    if not isinstance(outputs, list):
        raise ValueError(f"the trace is damaged: outputs is {outputs!r:.60}")
    for output in outputs:
        _typed(output, OUTPUT)
        if missing := OUTPUT.keys() - output.keys():
            raise ValueError(f"the trace is damaged: an output has no {min(missing)}")
    for value in data.get("sampling", {}).values():
        _number(value)


def _typed(item: Any, kinds: Mapping[str, str]) -> None:
    """Raise ValueError if ``item`` is not an object, or if a field does not have its type in
    ``kinds``."""
    if not isinstance(item, Mapping):
        raise ValueError(f"the trace is damaged: {item!r:.60} is no object")
    for name, kind in kinds.items():
        if name not in item:
            continue
        value, types = item[name], TYPES[kind]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"the trace is damaged: {name} is {value!r:.60}")
        if isinstance(value, (int, float)):
            _number(value)


def _ints(values: Iterable[Any]) -> Iterable[int]:
    return (value if isinstance(value, int) else -1 for value in values)


def _number(value: Any) -> None:
    if not isinstance(value, (int, float)) or not -LARGEST <= value <= LARGEST:
        raise ValueError(f"the trace is damaged: {value!r:.60} is no number that it may have")
