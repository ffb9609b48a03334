"""A ReAct agent on HotpotQA, replayed: each step asks the model for a thought and an action, then
goes on with the recorded ones and their observation, so that all prompts are those of the trace.

The examples in front are traces of the same file in which the agent was right.
"""

from __future__ import annotations

import random
from typing import Any

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.harness.data import records
from benchmark.harness.numbered import unlike

EXAMPLES = {False: 1, True: 6}
CHARACTERS = {False: 8, True: 4}
"""Of a recorded thought with its action, for a token that may be written in their place: with 4,
random weights write about as many tokens as the agent did."""
TASK = (
    "Answer a question in steps of a Thought, an Action and an Observation. A thought tells what "
    "is known and what to do next. Actions are Search[entity], which gives the beginning of the "
    "article on it, Lookup[words], which gives the next sentence there that has the words, and "
    "Finish[answer], which ends the task. Here are some examples.\n\n"
)

Step = dict[str, str]


def items(scale: Scale, seed: int) -> list[Item]:
    """Return the items. Traces repeat after the last one."""
    traces = [(question, steps) for record in records("react.jsonl")
              for question, steps in record.items()]  # fmt: skip
    solved = sorted(filter(_solved, traces), key=_length)[: EXAMPLES[scale.long]]
    rest = [trace for trace in traces if trace not in solved]
    draw = random.Random(seed)
    draw.shuffle(rest)
    head = f"{unlike(draw)}{TASK}"
    head += "".join(f"{question}\n{_whole(steps)}\n" for question, steps in solved)
    found: list[Item] = []
    for number in range(scale.items):
        question, steps = rest[number % len(rest)]
        limits = [
            max(1, len(step["thought"] + step["action"]) // CHARACTERS[scale.long])
            for step in steps
        ]
        told = [_recorded(at, step) for at, step in enumerate(steps)]
        found.append(
            {"examples": head, "question": f"{question}\n", "steps": told, "limits": limits}
        )
    return found


def _solved(trace: tuple[str, list[Step]]) -> bool:
    return "reward = 1" in trace[1][-1]["observation"]


def _length(trace: tuple[str, list[Step]]) -> int:
    return sum(len(text) for step in trace[1] for text in step.values())


def _opening(at: int) -> str:
    return f"Thought {at + 1}:"


def _ending(at: int) -> str:
    return f"\nObservation {at + 1}:"


def _recorded(at: int, step: Step) -> str:
    """Recorded text after ``_opening``."""
    return (
        f" {step['thought']}\nAction {at + 1}: {step['action']}{_ending(at)} "
        f"{step['observation'].strip()}\n"
    )


def _whole(steps: list[Step]) -> str:
    return "".join(_opening(at) + _recorded(at, step) for at, step in enumerate(steps))


@sgl.function
def program(s, examples, question, steps, limits):
    s += examples + question
    written: list[Any] = []
    for at, (recorded, limit) in enumerate(zip(steps, limits)):
        s += _opening(at)
        with s.copy() as step:
            step += sgl.gen("step", max_tokens=limit, stop=_ending(at))
            written.append(step["step"])
        s += recorded
    return written


async def plain(api: Api, item: Item) -> list[str]:
    prompt, written = item["examples"] + item["question"], []
    for at, (recorded, limit) in enumerate(zip(item["steps"], item["limits"])):
        prompt += _opening(at)
        written += await api.complete(prompt, limit, stop=[_ending(at)])
        prompt += recorded
    return written


CLAIM = Claim(
    name="react",
    title="ReAct agent (replay)",
    paper="Fig. 5 and 6, ReAct agent: traces replayed",
    items=items,
    program=program,
    plain=plain,
    speedup=2.0,
)
