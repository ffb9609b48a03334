"""A plain transcription of what a submission means: one step after the other, no promise."""

from __future__ import annotations

from typing import Any

from helpers.program_graphs import Plain, program
from helpers.scripted_calls import reply
from sglang.semantics.transforms import text_of, transformed
from sglang.srt.programs.submission import Ref


def values_of(body: Plain, given: dict[str, Any] | None = None) -> dict[tuple[int, str], Any]:
    """Every variable of a submission, by step and name. ``given``: semantic variables by id."""
    checked, found = program(body), dict[tuple[int, str], Any]()
    texts: dict[int, str] = {}
    named: dict[int, dict[str, Any]] = {}
    at_fork: dict[int, tuple[str, dict[str, Any]]] = {}
    at_end: dict[int, dict[str, Any]] = {}

    def value(ref: Any) -> Any:
        if isinstance(ref, list):
            return [value(each) for each in ref]
        if not isinstance(ref, Ref):
            return ref
        if ref.step is not None:
            return found[ref.step, ref.name or ""]
        if ref.argument is not None:
            return value(checked.arguments[ref.argument])
        return (given or {})[ref.var or ""]

    def begin(stream: int) -> None:
        start = checked.streams[stream].begin
        forked = start is not None and start.fork is not None
        texts[stream], named[stream] = at_fork[start.fork] if forked else ("", {})  # type: ignore[union-attr,index]
        named[stream] = dict(named[stream])
        if start is not None and start.number is not None:
            at_end[start.number] = dict(named[stream])

    for number in checked.before:
        step: Any = checked.steps[number]  # a union; its ``op`` says which
        stream = checked.homes[number]
        if stream not in texts:
            begin(stream)
        read = [value(each) for each in checked.values[number]]
        made: dict[str, Any] = {}
        if step.op == "text":
            texts[stream] += step.text
        elif step.op == "value":
            texts[stream] += text_of(transformed(checked.transforms[number], read[0]))
        elif step.op == "gen":
            made = {step.name: reply(texts[stream])} if step.name else {}
            texts[stream] += reply(texts[stream])
        elif step.op == "set":
            made = {step.name: read[0]}
        elif step.op == "transform":
            made = {step.name: transformed(checked.transforms[number], read[0])}
        elif step.op == "fork":
            at_fork[number] = texts[stream], dict(named[stream])
        elif step.op == "join":
            made = {name: [at_end[end].get(name) for end in step.ends] for name in step.names}
        else:
            raise NotImplementedError(step.op)
        named[stream].update(made)
        found.update({(number, name): each for name, each in made.items()})
        at_end[number] = dict(named[stream])
    return found
