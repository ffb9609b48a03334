"""Programs of several calls, by the lengths of Parrot's workloads (section 8).

Lengths that the paper gives are the paper's: the four GPTs' prompts (its published traces,
microsoft/ParrotServe, MIT), 20,000 tokens a document, outputs of 50, files and reviews of the
multi-agent program. Chats have the lengths of a public trace (``benchmark/data/azure_conv.csv``).
The others are assumptions, here in one table.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

AZURE = Path(__file__).resolve().parents[1] / "data" / "azure_conv.csv"
GPTS = (7437, 1116, 1694, 2031)  # tokens of four system prompts: productivity, programming, ...
QUERY, ANSWER = (40, 120), (150, 350)  # of a user of a GPT
DOCUMENT, CHUNK, SUMMARY = 20_480, 1024, 50
TASK, ROLE, DESIGN, CODE, REVIEW, OWN = 120, 350, 600, 500, 120, 40
REVIEWS = 3
SPACE = 32_768  # most tokens of a text


class Piece(NamedTuple):
    """A part of a prompt: a text by its key, equal keys being equal texts, or a call's output."""

    tokens: int
    key: str = ""
    output: int = -1


@dataclass(frozen=True)
class Call:
    """A call of a program.

    Attributes:
        prompt: its pieces. output: tokens that it generates.
        stage: calls after it; group: its task group, -1 for none.
        kind: of its hint.
    """

    prompt: Sequence[Piece]
    output: int
    stage: int = 0
    group: int = -1
    kind: str = "latency"

    @property
    def needs(self) -> set[int]:
        """Calls whose outputs it reads."""
        return {piece.output for piece in self.prompt if piece.output >= 0}


@dataclass(frozen=True)
class Program:
    """Calls that read each other's outputs, by number."""

    name: str
    arrival: float
    calls: Sequence[Call]
    kind: str = ""
    tokens: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        total = sum(sum(p.tokens for p in c.prompt) + c.output for c in self.calls)
        object.__setattr__(self, "tokens", total)


def poisson(r: random.Random, rate: float, seconds: float) -> Iterator[float]:
    """Moments of arrivals."""
    moment = r.expovariate(rate)
    while moment < seconds:
        yield moment
        moment += r.expovariate(rate)


def gpts(rate: float, seconds: float, seed: int = 0, times: int = 1) -> list[Program]:
    """Users of four applications with long system prompts (section 8.3), ``times`` as long as the
    paper's."""
    r, found = random.Random(seed), []
    for number, moment in enumerate(poisson(r, rate, seconds)):
        which = r.randrange(len(GPTS))
        system = Piece(times * GPTS[which], f"gpt {which} x {times}")
        prompt = [system, Piece(r.randint(*QUERY), f"query {number}")]
        call = Call(prompt, r.randint(*ANSWER))
        found.append(Program(f"gpt {number}", moment, [call], "gpt"))
    return found


def map_reduce(name: str, moment: float, kind: str = "latency") -> Program:
    """A document's chunks are summarised in parallel, then the summaries (section 8.2)."""
    maps = DOCUMENT // CHUNK
    calls = [
        Call([Piece(60, "map"), Piece(CHUNK, f"{name} {n}")], SUMMARY, 1, 0, kind)
        for n in range(maps)
    ]
    reads = [Piece(SUMMARY, output=n) for n in range(maps)]
    calls.append(Call([Piece(60, "reduce"), *reads], SUMMARY, 0, -1, kind))
    return Program(name, moment, calls, "map-reduce")


def multi_agent(files: int, name: str = "code", moment: float = 0.0) -> Program:
    """An architect, a coder a file, and three rounds of reviews and revisions (section 8.4).

    Every role's prompt begins with the task and the design. Reviewers and coders of a round read
    all files of the round before: dynamic text that they share.
    """
    task, design = Piece(TASK, f"{name} task"), Piece(DESIGN, output=0)
    stages = 2 * REVIEWS + 1  # behind the architect
    calls = [Call([Piece(ROLE, "architect"), task], DESIGN, stages)]

    def add(role: str, shared: Sequence[Piece], own: Sequence[Sequence[Piece]], size: int) -> None:
        nonlocal stages
        stages -= 1
        head = [Piece(ROLE, role), task, design, *shared]
        for number in range(files):
            prompt = [*head, Piece(OWN, f"file {number}"), *own[number]]
            calls.append(Call(prompt, size, stages, stages))

    def last(size: int) -> list[Piece]:
        end = len(calls)
        return [Piece(size, output=number) for number in range(end - files, end)]

    add("coder", [], [[]] * files, CODE)
    for _ in range(REVIEWS):
        codes = last(CODE)
        add("reviewer", codes, [[]] * files, REVIEW)
        reviews = last(REVIEW)
        add("reviser", codes, [[review] for review in reviews], CODE)
    return Program(name, moment, calls, "multi-agent")


def chats(rate: float, seconds: float, seed: int = 0) -> list[Program]:
    """Turns of chats, each alone; prompts of at most 512 tokens, as ShareGPT's mostly have."""
    r = random.Random(seed)
    with AZURE.open(encoding="utf-8") as file:
        lengths = [(int(row["prompt"]), int(row["answer"])) for row in csv.DictReader(file)]
    lengths = [(p, a) for p, a in lengths if p <= 512 and 50 <= a <= 512]
    found = []
    for number, moment in enumerate(poisson(r, rate, seconds)):
        prompt, answer = r.choice(lengths)
        call = Call([Piece(prompt, f"chat {number}")], answer)
        found.append(Program(f"chat {number}", moment, [call], "chat"))
    return found


def mixed(seconds: float, books: int, seed: int = 0) -> list[Program]:
    """Chats at one a second, and map-reduce programs at equal distances in the first half (section
    8.5)."""
    reduce = [
        map_reduce(f"book {n}", seconds / 2 * n / books, "throughput") for n in range(books)
    ]  # fmt: skip
    return sorted([*chats(1.0, seconds, seed), *reduce], key=lambda program: program.arrival)


def heavy_tail(rate: float, seconds: float, seed: int = 0) -> list[Program]:
    """Chains whose number of calls has a heavy tail (Pareto, exponent 1.1, 1 to 120 calls). Each
    call reads the text so far."""
    r, found = random.Random(seed), []
    for number, moment in enumerate(poisson(r, rate, seconds)):
        count = min(int(r.paretovariate(1.1)), 120)
        name, calls, past = f"chain {number}", list[Call](), list[Piece]()
        past.append(Piece(r.randint(200, 600), f"{name} begin"))
        for step in range(count):
            past.append(Piece(r.randint(50, 150), f"{name} {step}"))
            size = r.randint(60, 120)
            calls.append(Call(list(past), size, count - step - 1))
            past.append(Piece(size, output=step))
        found.append(Program(name, moment, calls, "chain"))
    return found


_begins: dict[object, int] = {}


def token_ids(key: object, count: int) -> range:
    """Ids of a text: equal for equal keys, and of no other key."""
    begin = _begins.setdefault(key, len(_begins))
    return range(begin * SPACE + 16, begin * SPACE + 16 + count)
