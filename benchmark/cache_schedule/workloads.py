"""Batches of tree-structured prompts, as LM programs send them. A prompt is a list of token ids;
the last token of each is its own, so that no prompt is a prefix of another."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmark.harness.prefixes import distinct

Prompts = list[list[int]]


class _Writer:
    """Makes text that no other prompt has: every token id is used once."""

    def __init__(self) -> None:
        self.next = 1

    def __call__(self, length: int) -> list[int]:
        self.next += length
        return list(range(self.next - length, self.next))


def few_shot(r: random.Random) -> Prompts:
    """One instruction, eight tasks with their examples, many questions on each."""
    text = _Writer()
    instruction = text(120)
    tasks = [instruction + text(r.randint(200, 400)) for _ in range(8)]
    return [task + text(r.randint(20, 60)) for task in tasks for _ in range(24)]


def tree_of_thought(r: random.Random) -> Prompts:
    """Every partial thought of a search is judged: four questions, branching 4, depth 3."""
    text = _Writer()
    out: Prompts = []

    def expand(path: list[int], depth: int) -> None:
        out.append(path + text(8))
        if depth:
            for _ in range(4):
                expand(path + text(r.randint(40, 80)), depth - 1)

    for _ in range(4):
        expand(text(150), 3)
    return out


def multi_turn(r: random.Random) -> Prompts:
    """Thirty-two conversations with one system prompt, a prompt for each of eight turns."""
    text = _Writer()
    system = text(200)
    out: Prompts = []
    for _ in range(32):
        history = list(system)
        for _ in range(8):
            history += text(r.randint(20, 60))
            out.append(history + text(1))
            history += text(r.randint(40, 100))
    return out


def random_tree(r: random.Random) -> Prompts:
    """Each prompt leaves another one at a random position."""
    text = _Writer()
    out: Prompts = [text(r.randint(100, 300)) for _ in range(3)]
    while len(out) < 256:
        parent = r.choice(out)
        out.append(parent[: r.randrange(len(parent))][:600] + text(r.randint(10, 80)))
    return out


WORKLOADS: dict[str, Callable[[random.Random], Prompts]] = {
    "few-shot": few_shot,
    "tree-of-thought": tree_of_thought,
    "multi-turn": multi_turn,
    "random-tree": random_tree,
}


def workload(name: str, seed: int) -> Prompts:
    """The prompts of ``name`` in a random order of arrival."""
    r = random.Random(seed)
    prompts = WORKLOADS[name](r)
    r.shuffle(prompts)
    return prompts


def lower_bound(prompts: Prompts) -> int:
    """Tokens of the union of all prompts as a tree: each edge once."""
    return distinct(prompts)
