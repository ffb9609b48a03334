"""Multi-chain reasoning on GSM8K: solved examples, then five chains that begin with a hint each,
all at once, then an answer that reads all of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.harness.gsm8k import number, problems
from benchmark.harness.numbered import numbered, unlike

HINTS = (
    "Let us go step by step.",
    "First write down what is known.",
    "Work backwards from what is asked.",
    "Find the quantities and name their units.",
    "Estimate the result, then calculate it.",
)
READ = "Read the {} solutions below, weigh them against each other and give the final number.\n\n"
EXAMPLES = 8  # at the end of the file; the others are questions


def items(scale: Scale, seed: int) -> list[Item]:
    found = problems()
    asked, solved = found[:-EXAMPLES], found[-EXAMPLES:]
    examples = unlike(random.Random(seed)) + _solved(solved if scale.long else solved[:2])
    tokens = 96 if scale.long else 16
    return [
        {"examples": examples, "question": label + question, "tokens": tokens, "gold": value}
        for label, (question, _, value) in numbered(asked, scale.items, seed)
    ]


def _solved(found: Sequence[tuple[str, str, float]]) -> str:
    return "".join(
        f"Question: {question}\nSolution: {solution} The answer is {value:g}.\n\n"
        for question, solution, value in found
    )


def read(chains: Sequence[str]) -> str:
    """Text between the question and the answer."""
    texts = [f"Solution {place}:{chain}\n\n" for place, chain in enumerate(chains, 1)]
    return READ.format(len(chains)) + "".join(texts) + "The final answer is"


@sgl.function
def program(s, examples, question, tokens, gold):
    s += examples + "Question: " + question + "\n"
    with s.fork(len(HINTS)) as forks:
        forks += lambda i: "Solution: " + HINTS[i] + sgl.gen("chain", tokens, stop="\n\n")
    s += read([hint + chain for hint, chain in zip(HINTS, s["chain"])]) + sgl.gen("answer", 8)
    return s["answer"]


async def plain(api: Api, item: Item) -> str:
    prompt = item["examples"] + "Question: " + item["question"] + "\n"

    async def think(hint: str) -> str:
        begun = prompt + "Solution: " + hint
        [chain] = await api.complete(begun, item["tokens"], stop=["\n\n"])
        return hint + chain

    chains = await asyncio.gather(*map(think, HINTS))
    [answer] = await api.complete(prompt + read(chains), max_tokens=8)
    return answer


CLAIM = Claim(
    name="multi_chain",
    title="Multi-chain reasoning (GSM8K)",
    paper="self-consistency, section 1; not in Fig. 5",
    items=items,
    program=program,
    plain=plain,
    right=lambda item, answer: number(answer) == item["gold"],
)
