"""Small sums done directly, larger products through a tool call whose result comes back.

Several sums share one sample: answers are what teaches, and a sum is mostly answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tools.train_tiny import words as w
from tools.train_tiny.sample import Job, Turn
from tools.train_tiny.words import Words


def draw_sum(rng: random.Random) -> tuple[str, str]:
    """An expression and its value."""
    kind = rng.randrange(10)
    if kind < 2:
        a, b = rng.randrange(10), rng.randrange(10)
        return f"{a} + {b}", str(a + b)
    if kind < 5:
        a, b = rng.randrange(10, 100), rng.randrange(1, 100)
        if rng.random() < 0.3:
            a, b = b, a
        return f"{a} + {b}", str(a + b)
    if kind < 8:
        a, b = rng.randrange(1, 100), rng.randrange(1, 100)
        a, b = max(a, b), min(a, b)
        return f"{a} - {b}", str(a - b)
    a, b = rng.randrange(1, 10), rng.randrange(1, 10)
    return f"{a} * {b}", str(a * b)


def question_of(rng: random.Random, expression: str) -> str:
    """A sum in words, or nearly bare."""
    a, sign, b = expression.split()
    spoken = {"+": "plus", "-": "minus", "*": "times"}[sign]
    return rng.choice(
        (
            f"What is {expression}?",
            f"What is {expression}?",
            f"{expression} =",
            f"{expression}",
            f"{a}{sign}{b}=",
            f"Compute {expression}.",
            f"Calculate {expression}.",
            f"What is {a} {spoken} {b}?",
            f"How much is {expression}?",
        )
    )


def direct(rng: random.Random, words: Words, size: int) -> Job:
    """A few sums in a row."""
    del words, size
    if rng.random() < 0.6:
        sums = [draw_sum(rng) for _ in range(rng.choice((1, 4, 6, 8)))]
        turns = tuple(Turn(question_of(rng, expression), value) for expression, value in sums)
        return Job("arithmetic_direct", turns)
    sums = [draw_sum(rng) for _ in range(rng.choice((1, 3, 6, 9)))]
    texts = ["\n" * bool(index) + f"{expression} =" for index, (expression, _) in enumerate(sums)]
    shots = tuple((text, value) for text, (_, value) in zip(texts, sums[:-1], strict=False))
    whole = "".join(f"{text} {value}" for text, value in shots[-3:]).lstrip("\n")
    turn = Turn((whole + texts[-1]).lstrip("\n"), sums[-1][1])
    return Job("arithmetic_direct", (turn,), raw=texts[-1], shots=shots)


def story(rng: random.Random, words: Words, size: int) -> Job:
    """A sum in the form of a story."""
    del size
    name, other = words.firsts(rng, 2)
    thing = words.things(rng, 1)[0]
    a, b = rng.randrange(1, 60), rng.randrange(1, 40)
    plural = thing + "s"
    if rng.random() < 0.5:
        text = rng.choice(
            (
                f"{name} has {a} {plural} and buys {b} more. How many {plural} does {name} have?",
                f"{name} has {a} {plural}. {other} gives {name} {b} more. "
                f"How many {plural} does {name} have now?",
                f"There are {a} {plural} in one box and {b} in another. How many are there?",
            )
        )
        return Job("arithmetic_story", (Turn(text, str(a + b)),))
    a, b = max(a, b), min(a, b)
    text = rng.choice(
        (
            f"{name} has {a} {plural} and gives {b} to {other}. "
            f"How many {plural} does {name} have left?",
            f"There were {a} {plural}. {name} sold {b}. How many are left?",
        )
    )
    return Job("arithmetic_story", (Turn(text, str(a - b)),))


def tool_problem(rng: random.Random, words: Words) -> tuple[str, str, int]:
    """A question that needs the calculator, the expression to send, and the value."""
    kind = rng.randrange(4)
    a, b = rng.randrange(11, 1000), rng.randrange(11, 100)
    if kind == 3:
        a, b = rng.randrange(100, 10000), rng.randrange(1, 10000)
        sign = rng.choice("+-")
        a, b = max(a, b), min(a, b)
        value = a + b if sign == "+" else a - b
        return question_of(rng, f"{a} {sign} {b}"), f"{a}{sign}{b}", value
    if kind == 2:
        thing = words.pick(rng, w.OBJECTS)
        question = f"One {thing} costs {a} dollars. How much do {b} of them cost?"
        return question, f"{a}*{b}", a * b
    return question_of(rng, f"{a} * {b}"), f"{a}*{b}", a * b


def tool(rng: random.Random, words: Words, size: int) -> Job:
    """First the call, then the answer from the result the program has put in."""
    del size
    question, expression, value = tool_problem(rng, words)
    call = f"<tool>calc({expression})</tool>"
    if rng.random() < 0.15:
        value = rng.randrange(100, 100000)
    result = f"<result>{value}</result>"
    rule = rng.choice(
        (
            None,
            "Use the tool for large numbers.",
            "You can call <tool>calc(expression)</tool>.",
        )
    )
    choice = rng.random()
    if choice < 0.35:
        turns: tuple[Turn, ...] = (Turn(question, call),)
    elif choice < 0.75:
        turns = (Turn(question, str(value), given=call + result),)
    else:
        turns = (Turn(question, call), Turn(result, str(value)))
    return Job("arithmetic_tool", turns, system=rule)


GENERATORS: dict[str, Callable[[random.Random, Words, int], Job]] = {
    "arithmetic_direct": direct,
    "arithmetic_story": story,
    "arithmetic_tool": tool,
}
