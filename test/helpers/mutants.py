"""Mutants: files that lie. Seeded changes of small valid ones, in their bytes or in their JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HUGE = (0, 1, -1, 127, 255, 1 << 15, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40,
        (1 << 62) + 1, (1 << 63) - 1, (1 << 64) - 1)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *HUGE, None, True, False, "", "x", "\ufdd0", "a" * 3000, 0.5, -1.5, 1e308, float("nan"), [], {},
    [[]], [None], {"": None}, ["a", 1], 10**30, "\u0000", [0] * 50, "(a*)*b", "(((", "\\p{L}",
)  # fmt: skip


def in_bytes(data: bytes, r: random.Random) -> bytes:
    """One to three faults: flipped, cut, doubled, lost or overwritten bytes."""
    out = bytearray(data)
    for _ in range(r.randint(1, 3)):
        at = (
            r.randrange(max(len(out), 1))
            if r.random() < 0.5
            else r.randrange(min(len(out), 300) + 1)
        )
        at = min(at, max(len(out) - 1, 0))
        kind = r.choice(("flip", "cut", "double", "lose", "number", "number"))
        if not out:
            break
        if kind == "flip":
            out[at] ^= 1 << r.randrange(8)
        elif kind == "cut":
            del out[at:]
        elif kind == "double":
            out[at:at] = out[at : at + r.randint(1, 64)]
        elif kind == "lose":
            del out[at : at + r.randint(1, 64)]
        else:
            size = r.choice((1, 2, 4, 8))
            out[at : at + size] = (r.choice(HUGE) % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(out)


def in_json(value: Any, r: random.Random) -> Any:
    """Change one to three values."""
    value = json.loads(json.dumps(value))
    for _ in range(r.randint(1, 3)):
        where = list(_places(value))
        if not where:
            return r.choice(VALUES)
        # Near the root there are fewer values, and more is decided there.
        holder, key = r.choice(where) if r.random() < 0.5 else r.choice(where[:60])
        kind = r.choice(("value", "value", "value", "lose", "other"))
        if kind == "lose":
            del holder[key]
        elif kind == "other":
            other, name = r.choice(where)
            holder[key] = json.loads(json.dumps(other[name])) if _there(other, name) else None
        else:
            holder[key] = r.choice(VALUES)
    return value


def _there(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key, the outer ones first."""
    level = [value]
    while level:
        inner = []
        for node in level:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            for key in keys:
                yield node, key
                if isinstance(node[key], (dict, list)):
                    inner.append(node[key])
        level = inner


def mutants(path: Path, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """``count`` of a file; half of a JSON file's are still JSON. With a name for messages."""
    data = path.read_bytes()
    for number in range(count):
        name = f"{path.name} {seed}:{number}"
        r = random.Random(name)
        if path.suffix == ".json" and number % 2:
            yield name, json.dumps(in_json(json.loads(data), r)).encode()
        else:
            yield name, in_bytes(data, r)
