"""Diagrams of the documentation, as SVG: boxes on a grid, and arrows between them.

    python -m tools.diagrams          write docs/images/*.svg anew

A test holds that the files are those that this module makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
CELL_X, CELL_Y, GAP_X, GAP_Y, MARGIN = 200, 64, 70, 44, 16
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1b2a2f; text-anchor: middle }
.small { font-size: 12px; fill: #51646b }
.box { stroke: #7d949c; stroke-width: 1.2; rx: 8 }
.plain { fill: #f4f7f8 } .program { fill: #fdf1d8 } .server { fill: #dcebf7 }
.engine { fill: #d9f0e6 } .worker { fill: #ece3f6 } .idle { fill: none; stroke-dasharray: 5 4 }
.arrow { stroke: #51646b; stroke-width: 1.4; fill: none; marker-end: url(#head) }
#head path { fill: #51646b }
"""


class Box(NamedTuple):
    """A box at a column and a row; `text` is its title, further lines are small."""

    column: float
    row: float
    text: str
    tone: str = "plain"
    width: float = 1  # in columns, gaps included


class Arrow(NamedTuple):
    """An arrow from one box to another, by their keys."""

    start: str
    end: str
    label: str = ""


class Diagram(NamedTuple):
    """Boxes by key, and arrows; `title` is read aloud where the image is not seen."""

    title: str
    boxes: Mapping[str, Box]
    arrows: Sequence[Arrow]


class Frame(NamedTuple):
    """A box in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2


def frame(box: Box) -> Frame:
    """The pixels of a box."""
    left = MARGIN + box.column * (CELL_X + GAP_X)
    top = MARGIN + box.row * (CELL_Y + GAP_Y)
    width = box.width * CELL_X + (box.width - 1) * GAP_X
    return Frame(left, top, left + width, top + CELL_Y)


def box_lines(box: Box) -> Iterator[str]:
    """A rectangle with its text, centred."""
    at = frame(box)
    lines = box.text.split("\n")
    yield (
        f'<rect class="box {box.tone}" x="{at.left:g}" y="{at.top:g}" rx="8" '
        f'width="{at.right - at.left:g}" height="{at.bottom - at.top:g}"/>'
    )
    x, y = at.middle
    y += 5 - 9 * (len(lines) - 1)
    for number, line in enumerate(lines):
        kind = ' class="small"' if number else ""
        yield f'<text{kind} x="{x:g}" y="{y + 18 * number:g}">{escape(line)}</text>'


def ends(start: Frame, end: Frame, shift: float) -> tuple[float, float, float, float]:
    """Two points on the facing sides of two boxes; `shift`, in pixels, parts opposite arrows."""
    (x1, y1), (x2, y2) = start.middle, end.middle
    if start.right <= end.left or end.right <= start.left:
        y = y1 + shift if y1 == y2 else y1
        left, right = (start.right, end.left) if x1 < x2 else (start.left, end.right)
        return left, y, right, y if y1 == y2 else y2
    x = min(max(x2, start.left + 20), start.right - 20) + shift
    top, bottom = (start.bottom, end.top) if y1 < y2 else (start.top, end.bottom)
    return x, top, x2 + shift, bottom


def arrow_lines(arrow: Arrow, diagram: Diagram) -> Iterator[str]:
    """An arrow and its label, beside its middle."""
    back = any((one.start, one.end) == (arrow.end, arrow.start) for one in diagram.arrows)
    shift = 0.0 if not back else -11.0 if arrow.start < arrow.end else 11.0
    start, end = (frame(diagram.boxes[key]) for key in (arrow.start, arrow.end))
    x1, y1, x2, y2 = ends(start, end, shift)
    yield f'<path class="arrow" d="M{x1:g} {y1:g} L{x2:g} {y2:g}"/>'
    if not arrow.label:
        return
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    anchor = "middle"
    if y1 == y2:
        y += 15 if shift > 0 else -6
    else:
        anchor = "end" if shift < 0 else "start"
        x, y = x + (-8 if shift < 0 else 8), y + 4
    yield (
        f'<text class="small" style="text-anchor:{anchor}" x="{x:g}" y="{y:g}">'
        f"{escape(arrow.label)}</text>"
    )


def svg(diagram: Diagram) -> str:
    """The diagram as the text of a file."""
    frames = [frame(box) for box in diagram.boxes.values()]
    width = max(one.right for one in frames) + MARGIN
    height = max(one.bottom for one in frames) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img">',
        f"<title>{escape(diagram.title)}</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff" rx="10"/>',
    ]
    for box in diagram.boxes.values():
        parts += box_lines(box)
    for arrow in diagram.arrows:
        parts += arrow_lines(arrow, diagram)
    return "\n".join([*parts, "</svg>", ""])


SHARING = Diagram(
    "A program forks into three branches; they share the prompt's KV in the radix tree, and run as "
    "one batch",
    {
        "prompt": Box(0, 1, "Mara Fox is 17 …\ncomputed once, 42 tokens", "program"),
        "age": Box(1, 0, "What is the age?\na branch", "program"),
        "city": Box(1, 1, "What is the city?\na branch", "program"),
        "role": Box(1, 2, "What is the role?\na branch", "program"),
        "batch": Box(2, 1, "one forward pass\nfor all branches", "worker"),
        "a": Box(3, 0, "17", "engine"),
        "b": Box(3, 1, "Rome", "engine"),
        "c": Box(3, 2, "sailor", "engine"),
    },
    [
        *(Arrow("prompt", one) for one in ("age", "city", "role")),
        *(Arrow(one, "batch") for one in ("age", "city", "role")),
        *(Arrow("batch", one) for one in ("a", "b", "c")),
    ],
)
PROCESSES = Diagram(
    "A program or an HTTP client talks to the server process, that to the engine process, and that "
    "to a worker on each device",
    {
        "1 program": Box(0, 0, "Program\nsglang: fork, gen, select", "program"),
        "1 client": Box(0, 1, "HTTP client\nOpenAI, Anthropic, curl", "program"),
        "2 server": Box(1, 0, "Server process\ntext in, text out", "server"),
        "3 engine": Box(2, 0, "Engine process\ntoken ids in, token ids out", "engine"),
        "4 worker": Box(3, 0, "Worker\ntensors of one device", "worker"),
        "tokenizer": Box(1, 1, "Tokenizer, chat templates,\ntools, keys, metrics", "server"),
        "memory": Box(2, 1, "Radix tree, pages,\nscheduler, grammars", "engine"),
        "model": Box(3, 1, "Model, KV cache,\nattention, sampling", "worker"),
    },
    [
        Arrow("1 program", "2 server", "HTTP"),
        Arrow("1 client", "2 server"),
        Arrow("2 server", "3 engine", "verbs"),
        Arrow("3 engine", "2 server", "events"),
        Arrow("3 engine", "4 worker", "Batch"),
        Arrow("4 worker", "3 engine", "results"),
    ],
)
REQUEST = Diagram(
    "The states of a request: waiting, running, draining, done; and retracted back to waiting",
    {
        "1 body": Box(0, 0, "JSON body\nchecked, tokenized", "server"),
        "2 waiting": Box(1, 0, "Waiting\nholds no memory", "engine"),
        "3 running": Box(2, 0, "Running\nholds pages, in each pass", "engine"),
        "4 draining": Box(3, 0, "Draining\nlast pass in flight", "engine"),
        "5 done": Box(3, 1, "Done\nits KV stays in the tree", "engine"),
        "6 text": Box(2, 1, "Text, usage, reason\nto the client", "server"),
    },
    [
        Arrow("1 body", "2 waiting", "Advance"),
        Arrow("2 waiting", "3 running", "admitted"),
        Arrow("3 running", "2 waiting", "retracted"),
        Arrow("3 running", "4 draining", "last token"),
        Arrow("4 draining", "5 done"),
        Arrow("5 done", "6 text", "Done"),
    ],
)
TREE = Diagram(
    "A radix tree of three prompts: the system prompt is stored once, two conversations continue "
    "it, one of them forks",
    {
        "root": Box(1, 0, "root", "idle"),
        "system": Box(1, 1, "You are a helpful …\n512 tokens, shared by all", "engine"),
        "a": Box(0, 2, "User: My name is Nora.\n2 requests use it: locked", "engine"),
        "b": Box(2, 2, "User: Translate …\nno request uses it: evictable", "plain"),
        "c": Box(0, 3, "What is my name?\nrunning", "worker"),
        "d": Box(1, 3, "Where do I live?\nrunning", "worker"),
    },
    [
        Arrow("root", "system"),
        Arrow("system", "a"),
        Arrow("system", "b"),
        Arrow("a", "c"),
        Arrow("a", "d"),
    ],
)
CONSTRAINT = Diagram(
    "A constraint becomes an automaton or a parser, that becomes a mask of tokens at each step, "
    "and forced text is appended without sampling",
    {
        "1 given": Box(0, 0, "regex, JSON schema,\nEBNF, type, choices", "program"),
        "2 compiled": Box(1, 0, "Compiled once\nin a child process", "engine"),
        "3 state": Box(2, 0, "State of the request\nafter its tokens so far", "engine"),
        "4 mask": Box(3, 0, "Mask\nallowed tokens", "worker"),
        "5 forced": Box(2, 1, "Forced text\none way to continue", "engine"),
        "6 sampled": Box(3, 1, "Sampled token", "worker"),
    },
    [
        Arrow("1 given", "2 compiled"),
        Arrow("2 compiled", "3 state"),
        Arrow("3 state", "4 mask"),
        Arrow("4 mask", "6 sampled"),
        Arrow("3 state", "5 forced", "jump-forward"),
        Arrow("6 sampled", "3 state"),
    ],
)
PROGRAM = Diagram(
    "A program's function runs in a thread; what it appends goes to the executor of its stream, "
    "which calls a backend",
    {
        "1 function": Box(0, 0, "Your function\n@sgl.function", "program"),
        "2 stream": Box(1, 0, "Executor of a stream\nruns nodes in order", "program"),
        "2 fork": Box(1, 1, "Executors of forks\none a branch, at once", "program"),
        "3 backend": Box(2, 0, "Backend\nlocal, server or API", "server"),
        "4 engine": Box(3, 0, "Engine, server\nthe radix cache shares", "engine"),
        "4 api": Box(3, 1, "OpenAI, Anthropic, …\nprice and speed of theirs", "plain"),
    },
    [
        Arrow("1 function", "2 stream", "s += …"),
        Arrow("2 stream", "1 function", 's["name"]'),
        Arrow("2 stream", "2 fork", "fork, join"),
        Arrow("2 stream", "3 backend"),
        Arrow("2 fork", "3 backend"),
        Arrow("3 backend", "4 engine"),
        Arrow("3 backend", "4 api"),
    ],
)
DIAGRAMS = {
    "sharing": SHARING,
    "processes": PROCESSES,
    "request": REQUEST,
    "radix-tree": TREE,
    "constraint": CONSTRAINT,
    "program-run": PROGRAM,
}


def main() -> None:
    """Write all diagrams."""
    for name, diagram in DIAGRAMS.items():
        (IMAGES / f"{name}.svg").write_text(svg(diagram), encoding="utf-8")


if __name__ == "__main__":
    main()
