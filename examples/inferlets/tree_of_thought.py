"""Tree of thought: steps of a solution are proposed, valued and searched breadth first.

The task is the game of 24: numbers are combined two at a time until one is left. A proposal that is
no legal step is dropped by the program, without a pass (symbolic evaluation); the others are valued
by the probability of "sure" against "no". All states share the pages of the instructions, and a
state's proposals those of the state. Arguments: the goal, proposals of a state, states kept, the
numbers.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from fractions import Fraction

from sglang.inferlet import Context, Ctx
from sglang.inferlet.samplers import at_text

TASK = """Combine two numbers at a time until one is left.
Numbers: 2 3 4
Step: 2 + 3 = 5 (left: 5 4)
Numbers: 5 4
Step: 5 * 4 = 20 (left: 20)
"""
DEFAULT = ("24", "3", "2", "4", "6", "10")
MOST_TOKENS = 16  # tokens of a proposal
STEP = re.compile(r"\s*(-?\d+(?:/\d+)?)\s*([-+*/])\s*(-?\d+(?:/\d+)?)")


@dataclass
class State:
    """Numbers that are left, the steps that led to them, and how promising they are."""

    numbers: list[Fraction]
    steps: list[str]
    value: float = 0.0


def shown(numbers: list[Fraction]) -> str:
    return " ".join(map(str, numbers))


def apply(numbers: list[Fraction], proposal: str) -> list[Fraction] | None:
    """Numbers after a step; None where the proposal is no legal one."""
    found = STEP.match(proposal)
    if found is None:
        return None
    left, rest = list(numbers), [Fraction(found[1]), Fraction(found[3])]
    for number in rest:
        if number not in left:
            return None
        left.remove(number)
    first, second = rest
    if found[2] == "/" and not second:
        return None
    results = {
        "+": lambda: first + second,
        "-": lambda: first - second,
        "*": lambda: first * second,
        "/": lambda: first / second,
    }
    return [*left, results[found[2]]()]


class Search:
    """A breadth-first search. ``proposed`` counts the texts that the model has written."""

    def __init__(self, ctx: Ctx, root: Context, goal: Fraction, width: int) -> None:
        self.ctx, self.root, self.goal, self.width = ctx, root, goal, width
        self.proposed = 0

    async def propose(self, state: State) -> list[str]:
        """Steps from a state: each begins with another of the most likely tokens."""
        [text] = await self.root.fork()
        await text.fill(f"Numbers: {shown(state.numbers)}\nStep:")
        dist = await text.next_dist(self.width)
        jobs = []
        for child, (token, _) in zip(await text.fork(self.width), dist.top(self.width)):
            child.extend([token])
            jobs.append(self.finish(child, len(text.tokens)))
        proposals = await asyncio.gather(*jobs)
        await text.free()
        self.proposed += len(proposals)
        return list(proposals)

    async def finish(self, text: Context, start: int) -> str:
        await text.generate_until(MOST_TOKENS - 1, stop=at_text("\n"))
        proposal = await text.text(start)
        await text.free()
        return proposal.split("\n")[0]

    async def value(self, state: State) -> float:
        """The promise of a state: known where one number is left, else by the model."""
        if len(state.numbers) == 1:
            return float("inf") if state.numbers[0] == self.goal else float("-inf")
        [text] = await self.root.fork()
        await text.fill(f"Can {shown(state.numbers)} reach {self.goal}? Answer:")
        answers = [(await self.ctx.tokenize(word))[0] for word in (" sure", " no")]
        sure, no = (await text.next_dist(k=1, probe=answers)).probe
        await text.free()
        return sure - no

    async def expand(self, state: State) -> list[State]:
        """Valued states one legal step further; equal ones once."""
        found: dict[str, State] = {}
        for proposal in await self.propose(state):
            numbers = apply(state.numbers, proposal)
            if numbers is not None:
                found.setdefault(
                    shown(sorted(numbers)), State(numbers, [*state.steps, proposal.strip()])
                )
        states = list(found.values())
        values = await asyncio.gather(*(self.value(one) for one in states))
        for one, value in zip(states, values):
            one.value = value
        return states


async def main(ctx: Ctx) -> dict[str, object]:
    goal, width, kept, *numbers = ctx.get_arg() or DEFAULT
    root = await Context(ctx).fill(TASK)
    search = Search(ctx, root, Fraction(goal), int(width))
    states = [State([Fraction(number) for number in numbers], [])]
    best = states[0]
    for _ in range(len(numbers) - 1):
        grown = await asyncio.gather(*(search.expand(state) for state in states))
        states = [state for found in grown for state in found]
        states = sorted(states, key=lambda one: -one.value)[: int(kept)]
        if not states:
            break
        best = states[0]
    await root.free()
    return {
        "solved": best.numbers == [search.goal],
        "steps": best.steps,
        "left": shown(best.numbers),
        "proposed": search.proposed,
    }
