"""Programs of today's agents: a generator of their shape, and a reader of recorded traces.

The generator follows what public traces show: 86 % of the turns come back within a second of the
answer before and 95 % within ten, a program has some 11 turns, and its prompts grow from 27,000
tokens in its first two turns to 90,000 after twenty. Programs of one kind share their system
prompt and the definitions of their tools. Tokens are divided by a scale; times are as they are.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCALE = 10  # tokens of an agent that one token here stands for
KINDS = 8  # kinds of agents; the nth is chosen 1 / n times as often as the first
# Tokens, before they are scaled: what the programs of a kind share, and the means of a program's
# own first prompt, of a tool's result and of an answer.
SYSTEM, FIRST, RETURNED, GENERATED = 9000, 16_400, 2600, 600
TURNS, MOST_TURNS = 10.9, 60
# Shares of the gaps, and between how many seconds they lie.
GAPS = ((0.86, 0.05, 1.0), (0.09, 1.0, 10.0), (0.05, 10.0, 120.0))
ALL = -1
BLOCK = 512  # tokens of a block of a Mooncake trace


@dataclass(frozen=True)
class AgentTurn:
    """A request to the model.

    Attributes:
        gap: seconds between the answer before and this request; of a first turn, 0.
        blocks: (identity, tokens) of what the prompt has after the tokens it keeps; what has one
            identity is one text.
        generated: tokens of the answer.
        keep: tokens of prompt and answer before that the prompt begins with; ``ALL`` of them.
    """

    gap: float
    blocks: tuple[tuple[int, int], ...]
    generated: int
    keep: int = ALL


@dataclass(frozen=True)
class Program:
    """An agent's turns, one after the other. ``arrival``: seconds since the start; a run with a
    number of clients ignores it."""

    number: int
    turns: tuple[AgentTurn, ...]
    arrival: float = 0.0

    def lengths(self) -> list[int]:
        """Tokens of the context after each answer."""
        found, total = [], 0
        for turn in self.turns:
            kept = total if turn.keep == ALL else turn.keep
            total = kept + sum(count for _, count in turn.blocks) + turn.generated
            found.append(total)
        return found


def generated(count: int, seed: int, scale: int = SCALE) -> list[Program]:
    """Return ``count`` programs of the shape above, their tokens divided by ``scale``."""
    r, identity = random.Random(seed), KINDS
    weights = [1 / (kind + 1) for kind in range(KINDS)]
    found = []
    for number in range(1, count + 1):
        (kind,) = r.choices(range(KINDS), weights)
        turns = []
        for index in range(_turns(r)):
            identity += 1
            answer = _length(r, GENERATED // scale)
            if index == 0:
                own = 1 + int(FIRST // scale * r.lognormvariate(-0.125, 0.5))  # mean 1
                first = ((kind, SYSTEM // scale), (identity, own))
                turns.append(AgentTurn(0.0, first, answer))
            else:
                result = _length(r, RETURNED // scale)
                turns.append(AgentTurn(_gap(r), ((identity, result),), answer))
        found.append(Program(number, tuple(turns)))
    return found


def _turns(r: random.Random) -> int:
    """Sample a number of turns: geometric, so that one more is always as likely."""
    return min(1 + int(math.log(1 - r.random()) / math.log(1 - 1 / TURNS)), MOST_TURNS)


def _length(r: random.Random, mean: int) -> int:
    """Sample a number of tokens, at least 1: exponential, cut at six times the mean."""
    return 1 + min(int(r.expovariate(1 / mean)), 6 * mean)


def _gap(r: random.Random) -> float:
    """Sample the seconds of a gap: log-uniform within each of its ranges."""
    (chosen,) = r.choices(GAPS, [share for share, _, _ in GAPS])
    return math.exp(r.uniform(math.log(chosen[1]), math.log(chosen[2])))


def mean_live(programs: Sequence[Program]) -> float:
    """Return the mean tokens of a context over all turns: those that a program alive has on average
    where all turns take alike long."""
    lengths = [length for program in programs for length in program.lengths()]
    return sum(lengths) / max(len(lengths), 1)


def read_trace(path: Path, scale: int = SCALE, block: int = BLOCK) -> list[Program]:
    """Read a Mooncake trace, or one with an agent's fields. See ``programs_of``."""
    with path.open(encoding="utf-8") as lines:
        return programs_of((json.loads(line) for line in lines if line.strip()), scale, block)


def programs_of(
    rows: Iterable[dict[str, Any]], scale: int = SCALE, block: int = BLOCK
) -> list[Program]:
    """Make programs of the rows of a trace, one request a row.

    Every row has ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``, one of
    each ``block`` tokens of the prompt: equal ids are equal blocks after equal beginnings. Rows of
    one ``session_id`` are one program, in the order of the file. Without that field, a row goes on
    with the last program whose prompt, except for its last block, it begins with.

    A turn comes its gap after the answer before: ``tool_wait_ms`` plus ``delay`` where the row has
    one of them, else the difference of the timestamps, which also holds the time of the recorded
    answer. Dependencies on other sessions (``wait_for``) are not kept: a session begins at its
    timestamp.

    Args:
        scale: tokens that one token stands for.

    Raises ValueError, KeyError or TypeError for a row without one of these fields.
    """
    numbers: dict[object, int] = {}  # dense identities of hashes
    sessions: list[list[_Row]] = []
    by_name: dict[object, list[_Row]] = {}
    by_prefix: dict[tuple[int, ...], list[_Row]] = {}
    for raw in rows:
        hashes = tuple(numbers.setdefault(key, len(numbers)) for key in raw["hash_ids"])
        row = _Row(raw, hashes, max(block // scale, 1), scale)
        session = by_name.get(raw["session_id"]) if "session_id" in raw else None
        if "session_id" not in raw:
            session = next(
                (by_prefix[part] for part in _prefixes(hashes) if part in by_prefix), None
            )
        if session is None:
            session = []
            sessions.append(session)
            if "session_id" in raw:
                by_name[raw["session_id"]] = session
        elif len(session[-1].hashes) > 1:
            by_prefix.pop(session[-1].hashes[:-1], None)
        session.append(row)
        if len(hashes) > 1:
            by_prefix[hashes[:-1]] = session
    found = [_program(number, session) for number, session in enumerate(sessions, 1)]
    return sorted(found, key=lambda program: program.arrival)


def _prefixes(hashes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Beginnings of a prompt, the longest first."""
    return (hashes[:length] for length in range(len(hashes), 0, -1))


class _Row:
    """A row of a trace, its tokens scaled."""

    def __init__(
        self, raw: dict[str, Any], hashes: tuple[int, ...], block: int, scale: int
    ) -> None:
        self.hashes, self.block = hashes, block
        self.at = float(raw["timestamp"]) / 1e3
        self.generated = max(int(raw["output_length"]) // scale, 1)
        length = max(int(raw["input_length"]) // scale, 1)
        self.length = min(length, max(len(hashes), 1) * block)
        waits = [raw.get("delay"), raw.get("tool_wait_ms")]
        known = [float(each) for each in waits if each is not None]
        self.gap = sum(known) / 1e3 if known else None

    def turn(self, before: _Row | None) -> AgentTurn:
        """Make a turn that keeps the blocks which it has in common with the row before."""
        common = 0
        if before is not None:
            for one, other in zip(before.hashes, self.hashes):
                if one != other:
                    break
                common += 1
        shorter = self.length if before is None else min(self.length, before.length)
        keep = min(common * self.block, shorter)
        blocks = []
        for index in range(keep // self.block, -(-self.length // self.block)):
            start, stop = index * self.block, min((index + 1) * self.block, self.length)
            if stop > keep:
                blocks.append((KINDS + 1 + self.hashes[index], stop - max(start, keep)))
        gap = 0.0
        if before is not None:
            gap = self.gap if self.gap is not None else max(self.at - before.at, 0.0)
        return AgentTurn(gap, tuple(blocks), self.generated, keep if before is not None else 0)


def _program(number: int, rows: list[_Row]) -> Program:
    turns = [row.turn(before) for before, row in zip([None, *rows], rows)]
    return Program(number, tuple(turns), rows[0].at)
