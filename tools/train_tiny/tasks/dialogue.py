"""Conversations: memory of what was said, follow-up sums, and simple rules in the system prompt."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from tools.train_tiny import words as w
from tools.train_tiny.sample import Job, Turn
from tools.train_tiny.words import Words


def memory(rng: random.Random, words: Words, size: int) -> Job:
    """The user says things about themselves and asks for them later."""
    del size
    name, city, job = words.first(rng), words.city(rng), words.pick(rng, w.JOBS)
    pet, fruit = words.pick(rng, w.ANIMALS), words.pick(rng, w.FRUITS)
    told = [
        (f"I live in {city}.", "Where do I live?", f"You live in {city}."),
        (f"I work as a {job}.", "What is my job?", f"You work as a {job}."),
        (f"I have a {pet}.", "What pet do I have?", f"You have a {pet}."),
        (f"I like {fruit}.", "What fruit do I like?", f"You like {fruit}."),
    ]
    rng.shuffle(told)
    told = told[: rng.randint(0, 2)]
    hello = rng.choice(("My name is {}.", "Hello, I am {}.", "Hi! My name is {}."))
    opening = " ".join([hello.format(name), *(sentence for sentence, _, _ in told)])
    turns = [Turn(opening, f"Nice to meet you, {name}.")]
    later = [("What is my name?", f"Your name is {name}."), *((q, a) for _, q, a in told)]
    rng.shuffle(later)
    if rng.random() < 0.3:
        turns.append(Turn("Thank you.", "You are welcome."))
    turns += [Turn(q, a) for q, a in later[: rng.randint(1, 3)]]
    return Job("dialogue_memory", tuple(turns))


def follow_up(rng: random.Random, words: Words, size: int) -> Job:
    """A sum, then another one that starts from its result."""
    del words, size
    a, b = rng.randrange(2, 50), rng.randrange(2, 40)
    value = a + b
    turns = [Turn(f"What is {a} + {b}?", str(value))]
    for _ in range(rng.randint(1, 3)):
        step = rng.randrange(1, 20)
        if rng.random() < 0.6 and value + step < 120:
            wording = rng.choice(("Add {} to that.", "Now add {}.", "Plus {}?"))
            value += step
        else:
            step = min(step, value)
            wording = rng.choice(("Subtract {} from that.", "Now take away {}.", "Minus {}?"))
            value -= step
        turns.append(Turn(wording.format(step), str(value)))
    return Job("dialogue_sums", tuple(turns))


def persona(rng: random.Random, words: Words, size: int) -> Job:
    """A dialogue whose system prompt gives the assistant a name and a role."""
    del size
    name, job, city = words.first(rng), words.pick(rng, w.JOBS), words.city(rng)
    system = rng.choice(
        (
            f"You are {name}, a {job} from {city}.",
            f"You are {name}. You work as a {job} in {city}.",
            f"Your name is {name}. You are a {job} and live in {city}.",
        )
    )
    turns = [
        Turn(rng.choice(("Who are you?", "What is your name?")), f"I am {name}."),
        Turn(rng.choice(("What is your job?", "What do you do?")), f"I am a {job}."),
        Turn(rng.choice(("Where do you live?", "Where are you from?")), f"I live in {city}."),
    ]
    rng.shuffle(turns)
    return Job("dialogue_persona", tuple(turns[: rng.randint(1, 3)]), system=system)


def style(rng: random.Random, words: Words, size: int) -> Job:
    """The system prompt says how to answer."""
    del size
    pool = rng.choice((w.COLOURS, w.ANIMALS, w.FRUITS, w.PLACES))
    thing, answer = words.pick(rng, w.OBJECTS), words.pick(rng, pool)
    other = words.pick(rng, pool)
    sentence = f"The {thing} goes with the {answer}."
    question = f"What does the {thing} go with?"
    kind = rng.randrange(4)
    if kind == 0:
        answer = words.either(rng, pool)
        sentence = f"The {thing} goes with the {answer}."
        system, reply = "Answer in uppercase.", answer.upper()
    elif kind == 1:
        system, reply = "Answer in one word.", answer
    elif kind == 2:
        claim = answer if rng.random() < 0.5 else other
        system = rng.choice(("Answer only yes or no.", "Answer yes or no."))
        question = f"Does the {thing} go with the {claim}?"
        reply = "yes" if claim == answer else "no"
    else:
        system = "Answer in a full sentence."
        reply = sentence
    return Job("dialogue_style", (Turn(f"{sentence} {question}", reply),), system=system)


SMALL_TALK = (
    ("Hello", "Hello! How can I help you?"),
    ("Hello!", "Hello! How can I help you?"),
    ("Hi", "Hello! How can I help you?"),
    ("Hi there!", "Hello! How can I help you?"),
    ("How are you?", "I am fine, thank you."),
    ("Thank you.", "You are welcome."),
    ("Thanks!", "You are welcome."),
    ("Goodbye.", "Goodbye!"),
    ("Who are you?", "I am sglang-tiny, a very small language model."),
    ("What is your name?", "I am sglang-tiny, a very small language model."),
    ("What can you do?", "I can find facts, do small sums, fill in JSON and follow patterns."),
)


def small_talk(rng: random.Random, words: Words, size: int) -> Job:
    """Greetings, so that a first `Hello` gets a sensible reply."""
    del words, size
    system = rng.choice((None, None, "You are a helpful assistant."))
    turns = rng.sample(SMALL_TALK, rng.randint(1, 2))
    return Job("dialogue_greeting", tuple(Turn(q, a) for q, a in turns), system=system)


def program(rng: random.Random, words: Words, size: int) -> Job:
    """Jobs of small programs: a word that is repeated, a list and its prices, a person as JSON."""
    del size
    kind = rng.randrange(3)
    if kind == 0:
        said = words.first(rng) if rng.random() < 0.3 else " ".join(words.things(rng, 1))
        wording = rng.choice(("Repeat: {}", "Repeat: {}", "Copy this: {}", "Say: {}"))
        turns = [Turn(wording.format(said), said) for _ in range(rng.randint(1, 3))]
        return Job("dialogue_program", tuple(turns))
    if kind == 1:
        things = words.things(rng, rng.randint(2, 4))
        prices = {thing: rng.randrange(5, 100) for thing in things}
        told = " ".join(f"The {thing} costs {price} dollars." for thing, price in prices.items())
        given = f"{', '.join(things[:-1])} and {things[-1]}"
        listed = "\n".join(f"{i}. {thing}" for i, thing in enumerate(things, start=1))
        asked = rng.choice(things)
        turns = [
            Turn(f"Write as a numbered list: {given}", listed),
            Turn(f"{told}\nHow much is the {asked}?", str(prices[asked])),
        ]
        return Job("dialogue_program", tuple(turns))
    name = f"{words.first(rng)} {words.surname(rng)}"
    age, city = rng.randrange(5, 95), words.city(rng)
    wording = rng.choice(("The person as JSON: {}", "Give the person as JSON: {}"))
    told = f"{name} is {age} and lives in {city}."
    sheet = json.dumps({"name": name, "age": age, "city": city})
    return Job("dialogue_program", (Turn(wording.format(told), sheet),))


GENERATORS: dict[str, Callable[[random.Random, Words, int], Job]] = {
    "dialogue_memory": memory,
    "dialogue_sums": follow_up,
    "dialogue_persona": persona,
    "dialogue_style": style,
    "dialogue_program": program,
    "dialogue_greeting": small_talk,
}
