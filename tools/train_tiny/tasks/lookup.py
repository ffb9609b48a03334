"""Answers that stand in the prompt: registers, key-value pairs, facts, passages.

`size` is the wanted length of the context in tokens, so the same jobs serve as the short look-ups
that teach copying and as the long ones that teach doing it over a distance.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from tools.train_tiny import words as w
from tools.train_tiny.sample import Job, Turn
from tools.train_tiny.words import Words, distinct

MAX_QUESTIONS = 4
MANY_QUESTIONS = 12  # about a long context, in training: answers are what teaches
LONG = 200  # tokens


def question_count(rng: random.Random, words: Words, size: int, most: int) -> int:
    """Number of questions about a context of ``size`` tokens, at most ``most``."""
    many = size >= LONG and not words.held_out
    return min(most, rng.randint(1, MANY_QUESTIONS if many else MAX_QUESTIONS))


def number(rng: random.Random, digits: int | None = None) -> str:
    """A number of two to five digits."""
    digits = digits or rng.choice((2, 3, 4, 5))
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def line_key(rng: random.Random, words: Words) -> str:
    """A name such as `torpid-kid`."""
    left = words.pick(rng, w.ADJECTIVES) if rng.random() < 0.7 else words.invented(rng)
    pool = rng.choice((w.OBJECTS, w.ANIMALS, w.PLACES))
    right = words.pick(rng, pool) if rng.random() < 0.7 else words.invented(rng)
    return f"{left}-{right}"


def count_for(rng: random.Random, size: int, per_item: int) -> int:
    """Number of items of a given length that fill the wanted size."""
    return max(2, min(size // per_item, 400) - rng.randrange(2))


def register_lines(rng: random.Random, words: Words, size: int) -> Job:
    """`line torpid-kid: REGISTER_CONTENT is <24169>`, as in the long-context line test."""
    keys = distinct(lambda: line_key(rng, words), count_for(rng, size, 19))
    values = {key: number(rng, 5) for key in keys}
    head = rng.choice(
        (
            "Below is a record of lines. Remember the REGISTER_CONTENT of each line.\n",
            "Here is a list of lines.\n",
            "",
        )
    )
    body = "\n".join(f"line {k}: REGISTER_CONTENT is <{v}>" for k, v in values.items())
    wording = rng.choice(
        (
            "What is the REGISTER_CONTENT in line {}?",
            "Tell me the REGISTER_CONTENT of line {}.",
            "What is the <REGISTER_CONTENT> in line {}?",
        )
    )
    asked = rng.sample(keys, question_count(rng, words, size, len(keys)))
    turns = tuple(Turn(wording.format(k), values[k]) for k in asked)
    return Job("lookup_line", turns, context=head + body)


def key_values(rng: random.Random, words: Words, size: int) -> Job:
    """Keys with values in one of several notations."""
    keys = distinct(
        lambda: words.invented(rng) if rng.random() < 0.5 else words.things(rng, 1)[0],
        min(count_for(rng, size, 9), 150),
    )
    numeric = rng.random() < 0.5
    values = [number(rng) if numeric else words.invented(rng) for _ in keys]
    pairs = dict(zip(keys, values, strict=True))
    style = rng.choice(("{}: {}", "{} = {}", "{} -> {}", "The code of {} is {}.", "json"))
    if style == "json":
        body = json.dumps(pairs)
    else:
        joint = rng.choice(("\n", "\n", "; ", ", ")) if "code" not in style else " "
        body = joint.join(style.format(k, v) for k, v in pairs.items())
    wording = rng.choice(
        (
            "What is the value of {}?",
            "What is {}?",
            "Which value belongs to {}?",
            "Give the value of {}.",
            "What is the code of {}?",
        )
    )
    asked = rng.sample(keys, question_count(rng, words, size, len(keys)))
    turns = tuple(Turn(wording.format(k), pairs[k]) for k in asked)
    return Job("lookup_pairs", turns, context=body)


Fact = tuple[str, str, str]
"""A sentence, a question about it, and the answer."""


def person_fact(rng: random.Random, words: Words, name: str) -> Fact:
    """Something about a person."""
    kind = rng.randrange(7)
    city, job = words.city(rng), words.pick(rng, w.JOBS)
    thing, colour = words.pick(rng, w.OBJECTS), words.pick(rng, w.COLOURS)
    if kind == 0:
        return f"{name} lives in {city}.", f"Where does {name} live?", city
    if kind == 1:
        return f"{name} works as a {job}.", f"What is the job of {name}?", job
    if kind == 2:
        age = str(rng.randrange(5, 99))
        return f"{name} is {age} years old.", f"How old is {name}?", age
    if kind == 3:
        return f"{name} has a {colour} {thing}.", f"What does {name} have?", f"{colour} {thing}"
    if kind == 4:
        food = words.pick(rng, w.FRUITS + w.VEGETABLES)
        return f"{name} likes to eat {food}.", f"What does {name} like to eat?", food
    if kind == 5:
        code = number(rng)
        return f"The code of {name} is {code}.", f"What is the code of {name}?", code
    sport = words.pick(rng, w.SPORTS)
    return f"The favorite sport of {name} is {sport}.", f"What sport does {name} like?", sport


def thing_fact(rng: random.Random, words: Words, thing: str) -> Fact:
    """Something about an object."""
    kind = rng.randrange(4)
    if kind == 0:
        place = words.pick(rng, w.PLACES)
        return f"The {thing} is in the {place}.", f"Where is the {thing}?", place
    if kind == 1:
        colour = words.pick(rng, w.COLOURS)
        return f"The {thing} is {colour}.", f"What color is the {thing}?", colour
    if kind == 2:
        price = number(rng)
        return f"The {thing} costs {price} dollars.", f"How much is the {thing}?", price
    owner = words.first(rng)
    return f"The {thing} belongs to {owner}.", f"Who owns the {thing}?", owner


def special_fact(rng: random.Random, words: Words) -> Fact:
    """A needle of the kind long-context tests hide."""
    kind = rng.randrange(4)
    if kind == 0:
        code = number(rng)
        return f"The pass key is {code}. Remember it.", "What is the pass key?", code
    city = words.city(rng)
    if kind == 1:
        code = number(rng, rng.choice((4, 5)))
        sentence = f"The special magic number for {city} is {code}."
        return sentence, f"What is the special magic number for {city}?", code
    if kind == 2:
        word = words.invented(rng)
        return f"The secret word is {word}.", "What is the secret word?", word
    day = rng.choice(w.DAYS)
    return f"The meeting in {city} is on {day}.", f"When is the meeting in {city}?", day


def filler(rng: random.Random, words: Words) -> str:
    """A sentence that no question is about."""
    a, b = words.pick(rng, w.ADJECTIVES), words.pick(rng, w.ADJECTIVES)
    thing, place = words.pick(rng, w.OBJECTS), words.pick(rng, w.PLACES)
    animal, verb = words.pick(rng, w.ANIMALS), words.pick(rng, w.VERBS)
    return rng.choice(
        (
            f"It was a {a} day near the {place}.",
            f"A {a} {animal} sat by a {b} {thing}.",
            f"They wanted to {verb} something {a} before lunch.",
            f"Nobody saw the {animal} behind the {place}.",
            "The grass is green. The sky is blue. The sun is yellow.",
            f"Some people {verb} every {rng.choice(w.DAYS)}, and some never do.",
            f"There was a {a} road from the {place} to the hills.",
            "Here we go. There and back again.",
        )
    )


def facts(rng: random.Random, words: Words, size: int) -> Job:
    """Facts about people and things, in a paragraph that may be mostly filler."""
    count = min(count_for(rng, size, 12), rng.choice((3, 5, 8, 12, 20)))
    made: list[Fact] = []
    for name in words.firsts(rng, count):
        subject = name if rng.random() < 0.6 else f"{name} {words.surname(rng)}"
        made.append(person_fact(rng, words, subject))
    things = words.sample(rng, w.OBJECTS, min(count, 8))
    made += [thing_fact(rng, words, thing) for thing in things]
    made.append(special_fact(rng, words))
    made = rng.sample(made, min(len(made), count))
    sentences = [fact[0] for fact in made]
    fillers = max(0, size - 11 * count) // 12
    for _ in range(fillers):
        sentences.insert(rng.randrange(len(sentences) + 1), filler(rng, words))
    asked = rng.sample(made, question_count(rng, words, size, len(made)))
    lead = rng.choice(("", "", "Context: ", "Read the text. ", "Text: "))
    context = lead + rng.choice((" ", " ", "\n")).join(sentences)
    if rng.random() < 0.3:
        tail = rng.choice(
            (" Answer with the text above.", " Answer briefly.", " Use only the context.")
        )
        asked = [(s, q + tail, a) for s, q, a in asked]
    return Job("facts", tuple(Turn(q, a) for _, q, a in asked), context=context)


def passages(rng: random.Random, words: Words, size: int) -> Job:
    """Numbered passages, as retrieval puts them in front of a question."""
    count = max(2, min(5, size // 40))
    blocks: list[str] = []
    made: list[tuple[int, Fact]] = []
    for index, name in enumerate(words.firsts(rng, count), start=1):
        inside = [person_fact(rng, words, name)]
        blocks.append(f"[{index}] " + " ".join([inside[0][0], filler(rng, words)]))
        made += [(index, fact) for fact in inside]
    turns = []
    asked = 1 if words.held_out else rng.randint(1, count)
    for number_asked, (_, question, answer) in rng.sample(made, asked):
        turns.append(Turn(question, answer))
        if rng.random() < 0.5:
            turns.append(Turn("Which passage says so?", f"[{number_asked}]"))
    return Job("facts_passages", tuple(turns), context="\n".join(blocks))


GENERATORS: dict[str, Callable[[random.Random, Words, int], Job]] = {
    "lookup_line": register_lines,
    "lookup_pairs": key_values,
    "facts": facts,
    "facts_passages": passages,
}
