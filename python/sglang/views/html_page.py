"""Page: a state as HTML for a notebook. The page is self-contained: no scripts, nothing to load."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from html import escape
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any

from sglang.run.stream import Stream
from sglang.views.display import HEADINGS, Cost, costs_of, note_of, printable, title
from sglang.views.shown_pieces import TextPiece, pieces_from, pieces_of

if TYPE_CHECKING:
    from sglang.run.stream_executor import StreamExecutor

MAX_IMAGE_BYTES = 1 << 20
MAX_HOVER_CHARS = 1000
# A token's text may be missing from the piece (a stop was cut). Limit of the search ahead for it.
GAP_CHARS = 8
LONG = (
    "input_token_logprobs", "output_token_logprobs", "input_top_logprobs", "output_top_logprobs",
    "unconditional_token_logprobs", "greedy_logprob_matrix",
)  # fmt: skip
PAGE = "color:#111;background:#fff;padding:.5em;font-family:monospace"
TEXT = "white-space:pre-wrap;overflow-wrap:anywhere"
TURNS = {"system": "#888", "user": "#36c", "assistant": "#2a2"}
PIECES = {
    "template": "color:#aaa",
    "gen": "background:#e6f4e6;border-bottom:2px solid #2a2",
    "select": "background:#e0f2f7;border-bottom:2px solid #07a",
    "tool": "background:#fbf0dc;border-bottom:2px solid #b70",
    "media": "color:#a3a",
}


def body_html(stream: Stream, executor: StreamExecutor, start: int = 0) -> str:
    """Return a state's text from offset ``start`` on as HTML: plain prompt, generated text coloured
    by log-probability, images, and a table with the cost of each gen."""
    pieces = pieces_from(pieces_of(stream, executor.interpreter.backend.chat_template), start)
    turns = groupby(pieces, key=lambda piece: piece.turn)
    parts = [_turn(turn.role if turn else "", map(_piece, group)) for turn, group in turns]
    if costs := costs_of(stream, start):
        parts.append(_table(costs))
    return "".join(parts)


def note_html(executor: StreamExecutor) -> str:
    """Return the reason why a state is not complete as HTML, "" if it is."""
    if not (note := note_of(executor)):
        return ""
    colour = "#b00" if executor.failure else "#555"
    return f'<div style="color:{colour};{TEXT}">{_safe(note)}</div>'


def framed(inside: str) -> str:
    """Return the page's frame around ``inside``."""
    return f'<div style="{PAGE}">{inside}</div>'


def _turn(role: str, inside: Iterator[str]) -> str:
    if not role:
        return f'<div style="{TEXT}">{"".join(inside)}</div>'
    colour = TURNS.get(role, "#a60")
    label = f'<div style="color:{colour};font-weight:bold">{_safe(role)}</div>'
    border = f"border-left:3px solid {colour};padding-left:.6em;margin:.3em 0"
    return f'<div style="{border};{TEXT}">{label}{"".join(inside)}</div>'


def _piece(piece: TextPiece) -> str:
    segment = piece.segment
    if segment is None:
        return _safe(piece.text) if piece.kind == "text" else _span(piece.text, PIECES["template"])
    if piece.kind == "media":
        return _media(segment.meta["media"])
    meta = segment.meta or {}
    rows = meta.get("output_token_logprobs") if piece.kind == "gen" else None
    tops = meta.get("output_top_logprobs") if piece.kind == "gen" else None
    inside = "".join(_tokens(piece.text, rows or (), tops or ()))
    return _marked(inside, PIECES[piece.kind], f"{title(segment)}\n{_hover(meta)}")


def _media(medium: Any) -> str:
    shown = repr(medium)[1:-1]
    small = 0 < len(medium.data) <= MAX_IMAGE_BYTES
    if medium.kind == "image" and small and medium.mime.startswith("image/"):
        source = _safe(f"data:{medium.mime};base64,{medium.base64}")
        style = "max-height:8em;max-width:100%;vertical-align:middle"
        return f'<img src="{source}" alt="{_safe(shown)}" title="{_safe(shown)}" style="{style}">'
    return _span(f"[{shown}]", PIECES["media"])


def _tokens(text: str, rows: Any, tops: Any = ()) -> Iterator[str]:
    """Yield ``text`` with its tokens, if found in it, coloured by their log-probabilities.
    ``tops``: most likely tokens at each position, shown with the token's probability."""
    at = 0
    for row, top in zip_longest(rows, tops[: len(rows)]):
        logprob, token = row[0], (row[2] if len(row) > 2 else None) or ""
        start = text.find(token, at, at + len(token) + GAP_CHARS) if token else -1
        if start < 0 or logprob is None:
            continue
        yield _safe(text[at:start])
        hue = 120 * math.exp(min(float(logprob), 0.0))
        said = [f"logprob {logprob:.4g}, probability {math.exp(min(float(logprob), 0.0)):.1%}"]
        said += [f"{math.exp(min(float(one[0]), 0.0)):.1%} {_word(one)!r}" for one in top or ()]
        yield _span(token, f"background:hsl({hue:.0f},85%,85%)", "\n".join(said))
        at = start + len(token)
    yield _safe(text[at:])


def _word(row: Any) -> Any:
    """Return the text of a token's row, or its id if the row has no text."""
    return row[2] if len(row) > 2 and row[2] is not None else row[1]


def _hover(meta: dict[str, Any]) -> str:
    brief = {name: value for name, value in meta.items() if name not in LONG}
    text = json.dumps(brief, default=repr, ensure_ascii=False, indent=1)
    return text if len(text) <= MAX_HOVER_CHARS else text[:MAX_HOVER_CHARS] + "..."


def _table(costs: list[Cost]) -> str:
    rows = [list(HEADINGS)]
    for cost in costs:
        rows.append([_safe(str(value)) for value in cost._replace(cached="")])
        rows[-1][2] = _share(cost)
    cell = '<td style="text-align:left;padding-right:1em">'
    body = "".join(f"<tr>{''.join(f'{cell}{text}</td>' for text in row)}</tr>" for row in rows)
    return f'<table style="color:inherit;margin-top:.5em">{body}</table>'


def _share(cost: Cost) -> str:
    """Return the prompt's fraction of cached tokens as a bar."""
    if not cost.prompt or cost.cached in ("", None):
        return _safe(str(cost.cached))
    share = int(cost.cached) / int(cost.prompt)
    bar = f'<meter min="0" max="1" value="{share:.3f}" title="cached share of the prompt"></meter>'
    return f"{bar} {cost.cached} ({share:.0%})"


def _span(text: str, style: str, hover: str = "") -> str:
    return _marked(_safe(text), style, hover) if text else ""


def _marked(inside: str, style: str, hover: str = "") -> str:
    said = f' title="{_safe(hover)}"' if hover else ""
    return f'<span style="{style}"{said}>{inside}</span>'


def _safe(text: str) -> str:
    return escape(printable(text))
