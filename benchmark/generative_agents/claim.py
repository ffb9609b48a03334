"""Calls as the generative agents make them: short answers to long prompts that begin alike.

The paper replays the agents' trace, which is not shipped with it. These calls are generated: some
agents, each with a description and memories, and four kinds of call. Two begin with the agent's
description (how much a thing matters to the agent; what is known of another person), two with
examples that are the same for all agents (where to find a thing; whether an event is a pleasure).
Calls come in a random order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.harness.facts import CITIES, JOBS, NAMES, PLACES, THINGS, filler

CALLS = 16
"""Of an agent."""
MEMORIES = {False: 2, True: 12}
"""Retrieved for a call."""
DESCRIBED = {False: 1, True: 16}
"""Sentences of an agent's description, besides the first."""
TRAITS = (
    "brave", "calm", "careful", "clever", "curious", "friendly", "funny", "gentle", "kind",
    "lively", "patient", "shy",
)  # fmt: skip
EVENTS = ["coffee", "dinner", "food", "hotel", "movie", "music", "room", "show", "soup", "story"]
WORDS = {"positive": ["excellent", "fantastic", "great", "lovely", "superb", "wonderful"],
         "negative": ["awful", "boring", "dull", "horrible", "poor", "terrible"]}  # fmt: skip
SCALE = "Scale: excellent = 9, good = 7, weak = 3, awful = 1.\n"
GRADES = {"excellent": "9", "good": "7", "weak": "3", "awful": "1"}


@dataclass(frozen=True)
class Agent:
    """A person of the town. ``description`` is what calls of the agent begin with."""

    name: str
    description: str


@dataclass(frozen=True)
class Call:
    """A prompt in two parts, the most tokens of its answer, and what the answer is."""

    shared: str
    own: str
    limit: int
    wanted: str


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    agents = _agents(draw, -(-scale.items // CALLS), DESCRIBED[scale.long])
    length = MEMORIES[scale.long]
    kinds = [_matters, _known, _found(draw, length // 2), _felt(draw, length // 4)]
    calls = [
        kinds[number % len(kinds)](draw, agents[number // CALLS], length)
        for number in range(scale.items)
    ]
    draw.shuffle(calls)
    return [vars(call) for call in calls]


def _agents(draw: random.Random, count: int, sentences: int) -> list[Agent]:
    """Return ``count`` agents. Names repeat after the last one, with other descriptions."""
    found = []
    for number in range(count):
        name, (first, second) = NAMES[number * 7 % len(NAMES)], draw.sample(TRAITS, 2)
        text = f"{name} is {first} and {second}. {name} works as a {draw.choice(JOBS)} in "
        text += f"{draw.choice(CITIES)}. " + _memories(draw, sentences)
        found.append(Agent(name, f"This is what is known about {name}. {text}\n"))
    return found


def _memories(draw: random.Random, count: int, *told: str) -> str:
    """``told`` among sentences that do not matter."""
    text = [*told, *(filler(draw) for _ in range(count))]
    draw.shuffle(text)
    return " ".join(text)


Kind = Callable[[random.Random, Agent, int], Call]
"""Makes a call of an agent, with a number of memories that do not matter."""


def _matters(draw: random.Random, agent: Agent, memories: int) -> Call:
    grade, thing = draw.choice(list(GRADES)), draw.choice(THINGS)
    shared = f"{agent.description}How much does a thing matter to {agent.name}?\n{SCALE}"
    own = f"{_memories(draw, memories)} The {thing} is {grade}.\nScore:"
    return Call(shared, own, 2, GRADES[grade])


def _known(draw: random.Random, agent: Agent, memories: int) -> Call:
    other, city = draw.choice([name for name in NAMES if name != agent.name]), draw.choice(CITIES)
    text = _memories(draw, memories, f"{other} lives in {city}.")
    own = f"{agent.name} remembers: {text}\nQuestion: Where does {other} live?\nAnswer:"
    return Call(agent.description, own, 8, city)


def _found(draw: random.Random, others: int) -> Kind:
    """``others``: sentences that do not matter in each of the examples, here and below."""

    def told(draw: random.Random, memories: int) -> tuple[str, str]:
        thing, place = draw.choice(THINGS), draw.choice(PLACES)
        text = _memories(draw, memories, f"The {thing} is in the {place}.")
        return f"{text}\nQuestion: Where is the {thing}?\nAnswer:", place

    shots = "".join(f"{text} {place}\n\n" for text, place in (told(draw, others) for _ in range(3)))

    def call(draw: random.Random, agent: Agent, memories: int) -> Call:
        text, place = told(draw, memories)
        return Call(shots, f"{agent.name} looks around. {text}", 8, place)

    return call


def _felt(draw: random.Random, others: int) -> Kind:
    def told(draw: random.Random) -> tuple[str, str]:
        feeling = draw.choice(list(WORDS))
        seen = f"The {draw.choice(EVENTS)} was {draw.choice(WORDS[feeling])}."
        return f"Review: {_memories(draw, others, seen)}\nSentiment:", feeling

    shots = "".join(f"{text} {feeling}\n\n" for text, feeling in (told(draw) for _ in range(5)))

    def call(draw: random.Random, agent: Agent, memories: int) -> Call:
        text, feeling = told(draw)
        return Call(shots, text, 4, feeling)

    return call


@sgl.function
def program(s, shared, own, limit, wanted):
    s += shared + own + sgl.gen("answer", max_tokens=limit, stop="\n")
    return s["answer"]


async def plain(api: Api, item: Item) -> str:
    [answer] = await api.complete(item["shared"] + item["own"], item["limit"], stop=["\n"])
    return answer


CLAIM = Claim(
    name="generative_agents",
    title="Generative agents (calls of their form)",
    paper="Fig. 5 and 6, generative agents: traces replayed (here drawn)",
    items=items,
    program=program,
    plain=plain,
    right=lambda item, answer: answer.strip() == item["wanted"],
)
