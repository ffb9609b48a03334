"""Code movement for prefix sharing (SGLang paper, appendix D.2).

The opening of a program, the text before its first call or fork, is split into pieces. A language
model, or any function, proposes an order in which the constant pieces come first, so that runs
share more of the prompt. This is the only pass that changes prompts, so it runs on request only. An
order is accepted only if it

- is a permutation in which every piece stays in its turn;
- keeps references between pieces: a piece with "above" stays after all pieces that preceded it, a
  piece with "below" or "following" stays before all pieces that followed it;
- does not move the piece that the model continues;
- does not shorten the constant prefix.

Pieces end at line and sentence ends. A heading, or a line that ends with a colon, is joined to the
next piece; an item of a list is joined to the previous piece."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang.ir.graph import Graph
from sglang.ir.graph_passes import fold
from sglang.ir.graph_steps import MAIN, Argument, Step
from sglang.ir.nodes import ConstantText, Gen, Image, Node, RoleBegin, RoleEnd
from sglang.ir.params import DEFAULTS, GenParams
from sglang.ir.source_location import Location
from sglang.run.run_scope import resolve_backend
from sglang.run.stream_executor import StreamExecutor
from sglang.state import ProgramState

Propose = Callable[[Sequence["PromptPiece"]], Sequence[int]]

BOUNDARY = re.compile(r"\s*\n\s*|(?:(?<=[a-z)\]\"'][.!?])|(?<=\A[.!?]))[ \t]+")
ENDS = (".", "!", "?")
ITEM = re.compile(r"([-*•]|\d+[.)])\s")
INTRODUCES = re.compile(r"#.*|.*:")
BACKWARD = re.compile(r"\b(above|previous|preceding|earlier|foregoing)\b", re.IGNORECASE)
FORWARD = re.compile(r"\b(below|following|follows|next)\b", re.IGNORECASE)

INSTRUCTION = """\
Below are the pieces of a prompt template, one a line. Pieces with {names} in braces differ from
call to call, the others are always the same. Put the pieces that are always the same first, so that
calls share a longer beginning, without changing what the prompt means: a piece that speaks of
something above or below it must stay on that side of it. Reply with the numbers of all pieces in
their new order and nothing else.

Template:
1: Here is a question: {question}
2: Please act as a math expert and solve the given question.
Order: 2, 1

Template:
1: You are a careful translator.
2: Text: {text}
3: Translate the text above into French.
4: Use a polite tone.
Order: 1, 4, 2, 3

Template:
"""


@dataclass(frozen=True)
class PromptPiece:
    """Part of an opening.

    Attributes:
        nodes: ConstantText, Argument and Image, without the white space ``tail`` after them.
        turn: index of the turn; only pieces of the same turn may be exchanged.
        fixed: the piece must not move, because the model continues it.
    """

    nodes: tuple[Node, ...]
    tail: str
    turn: int
    location: Location | None
    fixed: bool = False

    @property
    def constant(self) -> bool:
        """True if the piece is the same in every run."""
        return all(isinstance(node, ConstantText) for node in self.nodes)

    @property
    def introduces(self) -> bool:
        """True if the piece ends with a heading, or with a line that ends with a colon."""
        return INTRODUCES.fullmatch(str(self).rpartition("\n")[2]) is not None

    def __str__(self) -> str:
        return "".join(map(_shown, self.nodes))


def _shown(node: Node) -> str:
    if isinstance(node, ConstantText):
        return node.text
    return f"{{{node.name}}}" if isinstance(node, Argument) else "{image}"


def pieces_of(graph: Graph) -> list[PromptPiece]:
    """Return the pieces of the main stream's opening, in order."""
    opening, rest = _opening(graph)
    pieces: list[PromptPiece] = []
    turn = 0
    for begin, step in enumerate(opening):
        if isinstance(step.node, (RoleBegin, RoleEnd)):
            turn += 1
        elif begin == 0 or isinstance(opening[begin - 1].node, (RoleBegin, RoleEnd)):
            pieces += _cut(opening[begin:], turn)
    if rest and pieces and pieces[-1].turn == turn:
        last = pieces[-1]
        ends = "\n" in last.tail or str(last).endswith(ENDS)
        pieces[-1] = replace(last, fixed=last.introduces or not ends)
    return pieces


def _opening(graph: Graph) -> tuple[list[Step], list[Step]]:
    """Return the main stream's steps before the first that is no text, and the other steps."""
    steps = list(graph.streams[MAIN])
    kinds = (ConstantText, Argument, Image, RoleBegin, RoleEnd)
    end = next((i for i, step in enumerate(steps) if not isinstance(step.node, kinds)), len(steps))
    return steps[:end], steps[end:]


def _cut(steps: Sequence[Step], turn: int) -> list[PromptPiece]:
    """Return the pieces of the first turn of ``steps``."""
    pieces: list[PromptPiece] = []
    nodes: list[Node] = []

    def close(tail: str, location: Location | None) -> None:
        if nodes:
            pieces.append(PromptPiece(tuple(nodes), tail, turn, location))
            nodes.clear()
        elif tail and pieces:
            pieces[-1] = replace(pieces[-1], tail=pieces[-1].tail + tail)
        elif tail:
            nodes.append(ConstantText(tail))

    for step in steps:
        if isinstance(step.node, (RoleBegin, RoleEnd)):
            break
        if not isinstance(step.node, ConstantText):
            nodes.append(step.node)
            continue
        text, begin = step.node.text, 0
        for boundary in BOUNDARY.finditer(text):
            if text[begin : boundary.start()]:
                nodes.append(ConstantText(text[begin : boundary.start()]))
            close(boundary[0], step.location)
            begin = boundary.end()
        if text[begin:]:
            nodes.append(ConstantText(text[begin:]))
    close("", steps[0].location)
    return _glued(pieces)


def _glued(pieces: Sequence[PromptPiece]) -> list[PromptPiece]:
    out: list[PromptPiece] = []
    for piece in pieces:
        if out and (out[-1].introduces or ITEM.match(str(piece))):
            last = out.pop()
            nodes = (*last.nodes, ConstantText(last.tail), *piece.nodes)
            piece = replace(piece, nodes=nodes, location=last.location)
        out.append(piece)
    return out


def refusal(pieces: Sequence[PromptPiece], order: Sequence[int]) -> str:
    """Return the reason to refuse ``order``, piece numbers from 1; "" if it is allowed."""
    if sorted(order) != list(range(1, len(pieces) + 1)):
        return f"{list(order)} is no permutation of 1 to {len(pieces)}"
    for place, number in enumerate(order, 1):
        if pieces[number - 1].turn != pieces[place - 1].turn:
            return f"piece {number} leaves its turn"
        if pieces[place - 1].fixed and number != place:
            return f"piece {place} is what the model continues, and is moved"
    for place, number in enumerate(order):
        for later in order[place + 1 :]:
            if later < number and (word := _ties(pieces[later - 1], pieces[number - 1])):
                return f"piece {number} comes before piece {later}, and one says {word!r}"
    return ""


def _ties(first: PromptPiece, second: PromptPiece) -> str:
    """Return the word that forbids ``second`` to come before ``first``, or ""."""
    if first.turn != second.turn:
        return ""
    found = FORWARD.search(_words(first)) or BACKWARD.search(_words(second))
    return found[0] if found else ""


def _words(piece: PromptPiece) -> str:
    return "".join(node.text for node in piece.nodes if isinstance(node, ConstantText))


def reorder(graph: Graph, propose: Propose) -> Graph:
    """Return the graph with the pieces of its opening in the order that ``propose`` returns, as
    numbers from 1; ``graph`` itself if that order is not accepted."""
    pieces = pieces_of(graph)
    order = list(propose(pieces)) if len(pieces) > 1 else []
    if refusal(pieces, order) or order == sorted(order):
        return graph
    moved = _moved(graph, pieces, order)
    return graph if len(moved.constant_prefix()) < len(graph.constant_prefix()) else moved


def _moved(graph: Graph, pieces: Sequence[PromptPiece], order: Sequence[int]) -> Graph:
    opening, rest = _opening(graph)
    numbers = itertools.count(max(graph.steps()) + 1)

    def placed(turn: int) -> list[Step]:
        return [
            Step(next(numbers), node, piece.location)
            for piece in _turn(pieces, order, turn)
            for node in (*piece.nodes, ConstantText(piece.tail))
        ]

    turn = 0
    steps = placed(turn)
    for step in opening:
        if isinstance(step.node, (RoleBegin, RoleEnd)):
            turn += 1
            steps += [step, *placed(turn)]
    return fold(replace(graph, streams={**graph.streams, MAIN: (*steps, *rest)}))


def _turn(pieces: Sequence[PromptPiece], order: Sequence[int], turn: int) -> list[PromptPiece]:
    """Return the pieces of one turn in their new order. The old and the new last piece exchange
    their white space, so that the turn's end does not change."""
    old = [piece for piece in pieces if piece.turn == turn]
    new = [pieces[number - 1] for number in order if pieces[number - 1].turn == turn]
    if not new or new[-1] is old[-1]:
        return new
    tails = {id(new[-1]): old[-1].tail, id(old[-1]): new[-1].tail}
    return [replace(piece, tail=tails.get(id(piece), piece.tail)) for piece in new]


def constants_first(pieces: Sequence[PromptPiece]) -> list[int]:
    """Return the order with the most constants in front that the rules allow: an upper bound."""
    order: list[int] = []
    left = list(range(1, len(pieces) + 1))
    while left:
        turn = [n for n in left if pieces[n - 1].turn == pieces[left[0] - 1].turn]
        free = [n for n in turn if n == turn[0] or _may_come(n, turn, pieces)]
        chosen = next((n for n in free if pieces[n - 1].constant), free[0])
        order.append(chosen)
        left.remove(chosen)
    return order


def _may_come(number: int, turn: Sequence[int], pieces: Sequence[PromptPiece]) -> bool:
    """Return True if a piece may come before all remaining pieces of its turn."""
    piece = pieces[number - 1]
    before = (pieces[n - 1] for n in turn if n < number)
    return not piece.fixed and not any(_ties(other, piece) for other in before)


def propose_with(backend: Any, max_tokens: int = 64) -> Propose:
    """Return a function that requests an order from ``backend`` and raises the backend's errors."""
    params = GenParams(max_new_tokens=max_tokens, temperature=0, stop="\n").over(DEFAULTS)

    def propose(pieces: Sequence[PromptPiece]) -> list[int]:
        lines = [f"{n}: {' '.join(str(piece).split())}" for n, piece in enumerate(pieces, 1)]
        question = INSTRUCTION + "\n".join(lines) + "\nOrder:"
        state = ProgramState(StreamExecutor(resolve_backend(backend), DEFAULTS, use_thread=False))
        state.user(question)
        state.assistant(Gen("order", params))
        return [int(number) for number in re.findall(r"\d+", state["order"])]

    return propose
