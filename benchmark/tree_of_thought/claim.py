"""Tree of thought on GSM8K. Every thought has two that follow it, four levels deep: plans,
solutions, checks with a score, answers. All thirty are written, and the sixteen answers vote; so
the work does not depend on what the model writes, and greedy branches differ by their number in
the prompt."""

from __future__ import annotations

import asyncio

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.harness.gsm8k import problems, vote
from benchmark.harness.numbered import numbered

BRANCHES = 2
TASK = "Solve the problem below. First propose a plan, then follow it, check it, and answer.\n\n"
STEPS = (
    "\n\nPlan {}: which quantities are asked for, and by which steps can they be found? Do not "
    "calculate yet; name the idea and the order of the steps.\nPlan:",
    "\n\nSolution {}: follow the plan, one step in a line, and write down what each step gives. "
    "Keep to the numbers of the problem.\nSolution:",
    "\n\nCheck {}: read the solution again. Is every number of the problem used as it was meant, "
    "is every sum right? Name what is wrong, if anything, and give a score from 1 to 10.\nCheck:",
    "\n\nAnswer {}: heed the check and give the final answer, a number alone.\nAnswer:",
)
SHORT, LONG = (12, 12, 8, 4), (64, 64, 48, 16)
"""Tokens a thought of each level. Random weights write as many as they may; trained models stop by
themselves, most often before as many as these."""


def items(scale: Scale, seed: int) -> list[Item]:
    lengths = list(LONG if scale.long else SHORT)
    return [
        {"question": label + question, "lengths": lengths, "number": value}
        for label, (question, _, value) in numbered(problems(), scale.items, seed)
    ]


@sgl.function
def program(s, question, lengths, number):
    s += TASK + "Problem: " + question
    thoughts = [s]
    for step, length in zip(STEPS, lengths):
        groups = [thought.fork(BRANCHES) for thought in thoughts]
        for forks in groups:
            thought = sgl.gen("thought", length, stop="\n\n")
            forks += [step.format(number + 1) + thought for number in range(BRANCHES)]
        thoughts = [fork for forks in groups for fork in forks]
    return [thought["thought"] for thought in thoughts]


async def plain(api: Api, item: Item) -> list[str]:
    async def grow(text: str, level: int) -> list[str]:
        async def branch(number: int) -> list[str]:
            prompt = text + STEPS[level].format(number + 1)
            [thought] = await api.complete(prompt, item["lengths"][level], stop=["\n\n"])
            last = level + 1 == len(STEPS)
            return [thought] if last else await grow(prompt + thought, level + 1)

        leaves = await asyncio.gather(*map(branch, range(BRANCHES)))
        return [leaf for part in leaves for leaf in part]

    return await grow(TASK + "Problem: " + item["question"], 0)


CLAIM = Claim(
    name="tree_of_thought",
    title="Tree of thought (GSM8K)",
    paper="Fig. 5, Tree-of-Thought",
    items=items,
    program=program,
    plain=plain,
    right=lambda item, answer: vote(answer) == item["number"],
    speedup=2.0,
)
