"""Submissions for tests: built by hand, at random, and spoiled."""

from __future__ import annotations

import copy
import random
from typing import Any

import msgspec
from sglang.srt.programs.submission import Submission
from sglang.srt.programs.submission_check import CheckedProgram, checked

Plain = dict[str, Any]
MOST = 4096  # steps of a submission in tests


def stream(number: int, *steps: Plain, begin: Plain | None = None) -> Plain:
    """A stream; steps without a number are numbered STREAM * 1000 + INDEX."""
    numbered = [{"number": number * 1000 + i, **step} for i, step in enumerate(steps)]
    return {"stream": number, "begin": begin, "steps": numbered}


def graph(*streams: Plain, **arguments: Any) -> Plain:
    """A submission of streams."""
    return {"name": "f", "streams": list(streams), "arguments": arguments}


def text(content: str) -> Plain:
    return {"op": "text", "text": content}


def gen(name: str | None = None, tokens: int = 4, **body: Any) -> Plain:
    settings = {"max_new_tokens": tokens, "temperature": 0}
    return {"op": "gen", "name": name, "body": {"sampling_params": settings, **body}}


def value(step: int, name: str, *transforms: Plain) -> Plain:
    of = {"step": step, "name": name}
    return {"op": "value", "of": of, **({"transform": list(transforms)} if transforms else {})}


def transform(name: str, step: int, of: str, *transforms: Plain) -> Plain:
    return {"op": "transform", "name": name, "of": {"step": step, "name": of},
            "transform": list(transforms)}  # fmt: skip


def fork(*children: int) -> Plain:
    return {"op": "fork", "children": list(children)}


def join(*ends: int, made: tuple[str, ...] = (), mode: str = "gather_variable") -> Plain:
    return {"op": "join", "ends": list(ends), "mode": mode, "made": list(made)}


def branch(number: int, fork_step: int, index: int, *steps: Plain) -> Plain:
    return stream(number, *steps, begin={"fork": fork_step, "index": index})


def program(body: Plain, most: int = MOST) -> CheckedProgram:
    """The checked program of a plain submission. Raises as ``checked`` does."""
    return checked(msgspec.convert(body, Submission), most)


def chain(length: int, tokens: int = 4) -> Plain:
    """Calls one behind the other in one stream, variables ``x0`` and so on."""
    steps = [step for i in range(length) for step in (text(f" part {i}: "), gen(f"x{i}", tokens))]
    return graph(stream(0, *steps))


def map_reduce(width: int, tokens: int = 4) -> Plain:
    """Branches of a fork whose outputs one call reads."""
    branches = [
        branch(i + 1, 1, i, text(f" chunk {i}: "), gen("part", tokens)) for i in range(width)
    ]
    ends = [(i + 1) * 1000 + 1 for i in range(width)]
    reads = [value(end, "part") for end in ends]
    main = stream(0, text("Read. "), fork(*range(1, width + 1)), join(*ends, made=("part",)),
                  *reads, text(" So: "), gen("all", tokens))  # fmt: skip
    return graph(main, *branches)


def random_graph(seed: int, calls: int = 8) -> Plain:
    """A sound submission: streams, forks, joins, values, transforms and sets at random."""
    chance = random.Random(seed)
    streams: list[list[Plain]] = [[]]
    begins: list[Plain | None] = [None]
    made: list[list[tuple[int, str]]] = [[]]
    open_streams = [0]

    def add(at: int, step: Plain) -> int:
        number = at * 1000 + len(streams[at])
        streams[at].append({"number": number, "at": ["p.py", number], **step})
        return number

    add(0, text("begin "))
    for count in range(calls):
        at = chance.choice(open_streams)
        known = [key for keys in made for key in keys]
        if known and chance.random() < 0.5:
            add(at, value(*chance.choice(known)))
        if known and chance.random() < 0.2:
            step, name = chance.choice(known)
            number = add(at, transform(f"t{count}", step, name, {"op": "strip"}))
            made[at].append((number, f"t{count}"))
        add(at, text(f" [{count}] "))
        number = add(at, gen(f"x{count}", chance.randint(1, 6)))
        made[at].append((number, f"x{count}"))
        if chance.random() < 0.25:
            children = [len(streams) + i for i in range(chance.randint(1, 3))]
            number = add(at, fork(*children))
            for index, child in enumerate(children):
                streams.append([])
                made.append([])
                begins.append({"fork": number, "index": index})
                open_streams.append(child)
                add(child, text(f"branch {index} "))
            if chance.random() < 0.5:
                names = tuple(name for _, name in made[at][:1])
                add(at, join(*(child * 1000 for child in children), made=names))
    bodies = [{"stream": i, "begin": begins[i], "steps": steps} for i, steps in enumerate(streams)]
    return {"name": f"random {seed}", "streams": bodies, "arguments": {}}


def spoiled(body: Plain, chance: random.Random) -> Plain:
    """The submission with one part of it replaced, removed or doubled."""
    body = msgspec.json.decode(msgspec.json.encode(body))
    stray: list[Any] = [
        None, -1, 0, 1 << 53, 1e300, True, "", "x" * 300, [], {}, [[[]]], {"op": "gen"},
        {"step": 0, "name": "x0"}, {"argument": "no"}, {"var": "no"}, {"op": "regex",
        "pattern": "(" * 20}, {"op": "regex", "pattern": "(a+)+$" * 200}, {"op": "nothing"},
    ]  # fmt: skip
    for _ in range(chance.randint(1, 3)):
        holder: Any = body
        while True:
            keys = list(range(len(holder)) if isinstance(holder, list) else holder)
            if not keys:
                break
            key = chance.choice(keys)
            inner = holder[key]
            if isinstance(inner, (dict, list)) and inner and chance.random() < 0.8:
                holder = inner
                continue
            kind = chance.random()
            if kind < 0.5:
                holder[key] = copy.deepcopy(chance.choice(stray))
            elif kind < 0.75:
                del holder[key]
            elif isinstance(holder, list):
                holder.append(copy.deepcopy(inner))
            else:
                holder[f"{key}x"] = copy.deepcopy(inner)
            break
    return body
