"""Display: states and calls as text, for a terminal or a file."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from sglang.backend.base import Choose, Commit
from sglang.backend.tool_invocation import ToolAnswer, ToolInvocation
from sglang.ir.params import chosen
from sglang.run.history import HistoryEntry
from sglang.run.stream import Stream, TextSegment
from sglang.views.shown_pieces import TextPiece, pieces_from, pieces_of

if TYPE_CHECKING:
    from sglang.run.stream_executor import StreamExecutor

COLOURS = {"gen": 32, "select": 36, "tool": 33, "media": 35, "template": 2, "title": 1, "error": 31}
HEADINGS = ("", "prompt", "cached", "new", "finish", "seconds")
# Control characters could move the cursor or hide text; half a surrogate pair cannot be printed.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Cost(NamedTuple):
    """Tokens and seconds of one gen or select; "" where unknown."""

    name: str
    prompt: Any
    cached: Any
    new: Any
    finish: str
    seconds: Any


class Paint:
    """Marks text by colours if ``file`` is a terminal without NO_COLOR, else by brackets."""

    def __init__(self, file: TextIO | None) -> None:
        self._colours = (file or sys.stdout).isatty() and not os.environ.get("NO_COLOR")

    def __call__(self, kind: str, text: str) -> str:
        text = printable(text)
        return f"\x1b[{COLOURS[kind]}m{text}\x1b[0m" if self._colours and text else text

    def piece(self, piece: TextPiece) -> str:
        """Return a marked piece of a state's text."""
        if piece.segment is None:
            return printable(piece.text) if piece.kind == "text" else self("template", piece.text)
        if piece.kind == "media":
            return self("media", f"[{repr(piece.segment.meta['media'])[1:-1]}]")
        if self._colours:
            return self(piece.kind, piece.text)
        return printable(f"[{title(piece.segment)}: {piece.text}]")


def body_of(stream: Stream, executor: StreamExecutor, paint: Paint, start: int = 0) -> list[str]:
    """Return the lines of a state: its text from ``start`` on, and one for each gen in it."""
    pieces = pieces_from(pieces_of(stream, executor.interpreter.backend.chat_template), start)
    lines = ["".join(map(paint.piece, pieces))]
    if costs := costs_of(stream, start):
        lines += ["", *(paint("title", line) for line in _table(costs))]
    return lines


def print_history(entries: Sequence[HistoryEntry], file: TextIO | None = None) -> None:
    """Print calls: prompts, the parameters that were set, and answers."""
    paint = Paint(file)
    for number, entry in enumerate(entries, 1):
        heading = f"call {number} of {len(entries)}: {_kind(entry.call)}, {entry.backend}"
        seconds = f", {entry.ended - entry.began:.3f} s" if entry.ended else ""
        print(paint("title", heading + seconds), *_call(entry, paint), "", sep="\n", file=file)
    if not entries:
        print("no calls yet", file=file)


def snapshot(executor: StreamExecutor) -> Stream:
    """Return a copy of the current stream of an executor, which may be running."""
    stream = executor.stream.copy()
    stream.partial = dict(executor.stream.partial)
    return stream


def note_of(executor: StreamExecutor) -> str:
    """Return the reason why the state is not complete, "" if it is."""
    if (failure := executor.failure) is not None:
        where = f" at {failure.location}" if failure.location else ""
        return f"failed: {described(failure.error)}{where}"
    if (coming := executor.coming()) is None:
        return ""
    return f"not finished; to come: {', '.join(coming)}" if coming else "not finished"


def described(error: BaseException) -> str:
    """Return type and message of an error."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def printable(text: str) -> str:
    """Return ``text`` with control and unprintable characters replaced by visible ones."""
    return UNPRINTABLE.sub(lambda c: chr(0x2400 + ord(c[0])) if c[0] < " " else "\ufffd", text)


def title(segment: TextSegment) -> str:
    """Return kind and name of a segment, such as ``gen joke``."""
    return f"{segment.kind} {segment.name}" if segment.name else segment.kind


# Costs of calls


def costs_of(stream: Stream, start: int = 0) -> list[Cost]:
    """Return the cost of each gen, select and tool from the offset ``start`` on, in order."""
    return [
        _cost(segment, stream.meta.get(segment.name or ""))
        for segment in stream.segments
        if segment.kind != "media" and segment.start >= start
    ]


def _cost(segment: TextSegment, latest: Any) -> Cost:
    """Return the cost of a segment. ``latest``: meta_info of its variable; a list for n > 1."""
    meta = segment.meta or {}
    usage = meta.get("usage", meta)
    new = usage.get("completion_tokens", "")
    if isinstance(latest, list) and latest and latest[0] == meta:
        new = sum(one.get("completion_tokens") or 0 for one in latest)
    seconds = meta.get("e2e_latency")
    return Cost(
        title(segment),
        usage.get("prompt_tokens", ""),
        usage.get("cached_tokens", ""),
        new,
        finish_of(meta),
        "" if seconds is None else f"{seconds:.3f}",
    )


def finish_of(meta: dict[str, Any]) -> str:
    """Return the finish reason as text, such as ``stop '\\n'`` or ``length 16``."""
    if meta.get("speculated"):
        return "with the call before"
    reason = meta.get("finish_reason")
    if not isinstance(reason, dict):
        return str(reason or "")
    detail = reason.get("matched", reason.get("length"))
    return str(reason.get("type", "")) + ("" if detail is None else f" {detail!r}")


def _table(costs: Sequence[Cost]) -> list[str]:
    rows = [HEADINGS, *(tuple(map(str, cost)) for cost in costs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in (0, 4) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


# Calls of the history


def _kind(call: Any) -> str:
    kinds: dict[type, str] = {Choose: "select", Commit: "commit", ToolInvocation: "tool"}
    return kinds.get(type(call), "gen")


def _call(entry: HistoryEntry, paint: Paint) -> Iterator[str]:
    if isinstance(entry.call, ToolInvocation):
        yield from _tool(entry.call, entry.answer, paint)
        yield from _outcome(entry, paint)
        return
    prompt = entry.call.prompt
    yield printable(prompt.text)
    if not prompt.text:
        yield from (printable(f"{m['role']}: {m['content']}") for m in prompt.messages)
    for medium in prompt.media:
        yield paint("media", f"[{repr(medium)[1:-1]}]")
    if isinstance(entry.call, Choose):
        yield paint("title", f"by {entry.call.method}:")
        yield from _options(entry, paint)
    elif not isinstance(entry.call, Commit):
        words = ", ".join(f"{name}={value!r}" for name, value in chosen(entry.call.params).items())
        yield paint("title", f"with {words}:" if words else "answer:")
        for completion in entry.answer or ():
            yield paint("gen", completion.text)
            yield _tokens(completion.meta)
    yield from _outcome(entry, paint)


def _tool(call: ToolInvocation, answer: ToolAnswer | None, paint: Paint) -> Iterator[str]:
    yield from map(printable, call.arguments)
    yield paint("title", f"by {call.node.tool}:")
    if answer is not None:
        yield paint("tool", answer.text)


def _outcome(entry: HistoryEntry, paint: Paint) -> Iterator[str]:
    if entry.error is not None:
        yield paint("error", f"failed: {described(entry.error)}")
    elif not entry.ended:
        yield "not answered yet"


def _options(entry: HistoryEntry, paint: Paint) -> Iterator[str]:
    decision = entry.answer
    scores = decision.meta.get("normalized_prompt_logprobs", ()) if decision else ()
    for number, option in enumerate(entry.call.options):
        score = f"{scores[number]:9.3f}  " if number < len(scores) else ""
        taken = decision is not None and option == decision.text
        yield score + (paint("select", f"{option}  <- taken") if taken else printable(option))
    if decision:
        yield _tokens(decision.meta)


def _tokens(meta: dict[str, Any]) -> str:
    usage = meta.get("usage", meta)
    words = [
        f"{name} {usage[f'{key}_tokens']}"
        for name, key in (("prompt", "prompt"), ("cached", "cached"), ("new", "completion"))
        if usage.get(f"{key}_tokens") is not None
    ]
    finish = finish_of(meta)
    return "; ".join([*(["tokens: " + ", ".join(words)] if words else []), *filter(None, [finish])])
