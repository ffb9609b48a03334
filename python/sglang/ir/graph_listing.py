"""Listing: a graph for people to read, as lines of text and as a drawing."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from sglang.ir.choices import ChoicesMethod
from sglang.ir.graph import REQUIRED, Graph, Parameter, Step, references
from sglang.ir.params import GenParams, given

SHOWN = 60


def listing(graph: Graph) -> str:
    """The steps of each stream, with the program's lines."""
    lines = [f"{graph.name}({', '.join(map(_parameter, graph.arguments))})"]
    for number, steps in graph.streams.items():
        lines.append(f"stream {number}")
        lines += [f"{step.number:5} {describe(step.node)}{_where(step)}" for step in steps]
    if graph.result is not None:
        lines.append(f"returns {graph.result!r}")
    return "\n".join(lines)


def describe(node: object) -> str:
    """A node in one line; what has its default is left out."""
    words = [type(node).__name__]
    for f in dataclasses.fields(node):  # type: ignore[arg-type]
        value = getattr(node, f.name)
        if isinstance(value, GenParams):
            words += [f"{name}={item!r}" for name, item in given(value).items()]
        elif value != f.default:
            words.append(_value(value))
    return " ".join(words)


def dot(graph: Graph) -> str:
    """Graphviz: a box for each stream; broken arrows are dependencies between streams."""
    lines = ["digraph {", "  node [shape=box]"]
    for number, steps in graph.streams.items():
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f'    label = "stream {number}"')
        for step in steps:
            label = json.dumps(describe(step.node), ensure_ascii=False)
            lines.append(f"    {step.number} [label={label}]")
        lines.append("  }")
    for edge in graph.dependencies():
        style = " [style=dashed]" if edge.inter else ""
        lines.append(f"  {edge.before} -> {edge.after}{style}")
    return "\n".join([*lines, "}"])


def _parameter(parameter: Parameter) -> str:
    if parameter.default is REQUIRED:
        return parameter.name
    return f"{parameter.name}={_value(parameter.default)}"


def _where(step: Step) -> str:
    if step.location is None:
        return ""
    return f"  # {os.path.basename(step.location.filename)}:{step.location.line}"


def _value(value: Any) -> str:
    if isinstance(value, ChoicesMethod):
        return value.name
    if dataclasses.is_dataclass(value) and references(value):
        return describe(value)
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
