"""Character sheets: a short biography in, compact JSON or labelled lines out."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from tools.train_tiny import words as w
from tools.train_tiny.sample import Job, Turn
from tools.train_tiny.words import Words

FIELDS = ("name", "age", "house", "role", "city", "traits", "pet")
Sheet = dict[str, str | int | list[str]]


def sheet(rng: random.Random, words: Words) -> Sheet:
    """The facts of one character."""
    house = words.pick(rng, w.HOUSES) if rng.random() < 0.6 else words.invented(rng).capitalize()
    return {
        "name": f"{words.first(rng)} {words.surname(rng)}",
        "age": rng.randrange(8, 90),
        "house": house,
        "role": words.pick(rng, w.JOBS),
        "city": words.city(rng),
        "traits": words.sample(rng, w.TRAITS, rng.choice((2, 2, 3))),
        "pet": words.pick(rng, w.ANIMALS),
    }


def and_list(items: list[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def biography(rng: random.Random, facts: Sheet, fields: list[str]) -> str:
    """Sentences that state the given fields, in random order and wording."""
    name, first = str(facts["name"]), str(facts["name"]).split()[0]
    wordings = {
        "age": ("{} is {} years old.", "{} has just turned {}.", "At the age of {1}, {0} is busy."),
        "house": ("{} belongs to house {}.", "{} is in {}.", "{} was sorted into {}."),
        "role": ("{} works as a {}.", "{} is a {}.", "{} became a {} long ago."),
        "city": ("{} lives in {}.", "{} was born in {}.", "The home of {} is {}."),
        "traits": ("{} is {}.", "Friends call {} {}.", "People say {} is {}."),
        "pet": ("{} has a pet {}.", "{} keeps a {}.", "A {1} follows {0} everywhere."),
    }
    order = [field for field in fields if field != "name"]
    rng.shuffle(order)
    sentences: list[str] = []
    for field in order:
        value = facts[field]
        shown = and_list(value) if isinstance(value, list) else str(value)
        subject = first if sentences else name
        sentences.append(rng.choice(wordings[field]).format(subject, shown))
    return " ".join(sentences)


def choose_fields(rng: random.Random) -> list[str]:
    """The name and two to five other fields; half of the time in the usual order."""
    others = rng.sample(FIELDS[1:], rng.randint(2, 5))
    if rng.random() < 0.5:
        others.sort(key=FIELDS.index)
    return ["name", *others]


def to_json(rng: random.Random, words: Words, size: int) -> Job:
    """Compact JSON with the requested fields in the requested order."""
    del size
    fields, facts = choose_fields(rng), sheet(rng, words)
    told = list(fields) + [f for f in FIELDS if f not in fields and rng.random() < 0.3]
    text = biography(rng, facts, told)
    answer = json.dumps({field: facts[field] for field in fields})
    listed = ", ".join(fields)
    question = rng.choice(
        (
            f"Extract the character as JSON with the keys {listed}.",
            f"Write a JSON object with these keys: {listed}.",
            f"Give {listed} as JSON.",
            f"Fill in the character sheet as JSON. Keys: {listed}.",
        )
    )
    if rng.random() < 0.15:
        return Job("extract_json", (Turn(question, answer[1:], "{"),), context=text)
    raw = f"{text}\n{question}\n{rng.choice(('JSON:', 'Answer:', 'JSON:'))}"
    if rng.random() < 0.5:
        return Job("extract_json", (Turn(f"{text}\n{question}", answer),), raw=raw)
    return Job("extract_json", (Turn(question, answer),), context=text)


def to_indented(rng: random.Random, words: Words, size: int) -> Job:
    """Indented JSON, one key a line, the form regular expressions are usually written for."""
    del size
    fields, facts = choose_fields(rng)[:4], sheet(rng, words)
    fields = [field for field in fields if field != "traits"]
    text = biography(rng, facts, fields)
    answer = json.dumps({field: facts[field] for field in fields}, indent=4)
    question = f"Write indented JSON with the keys {', '.join(fields)}."
    return Job("extract_indented", (Turn(question, answer),), context=text)


def to_lines(rng: random.Random, words: Words, size: int) -> Job:
    """Labelled lines, or one labelled value at a time as a program forks for each field."""
    del size
    fields, facts = choose_fields(rng), sheet(rng, words)
    text = biography(rng, facts, fields)
    shown = {
        f: ", ".join(v) if isinstance(v, list) else str(v)
        for f, v in ((f, facts[f]) for f in fields)
    }
    if rng.random() < 0.5:
        answer = "\n".join(f"{f.capitalize()}: {shown[f]}" for f in fields)
        question = f"Write one line for each of these: {', '.join(fields)}."
        return Job("extract_lines", (Turn(question, answer),), context=text)
    asked = rng.sample(fields, min(3, len(fields)))
    turns = tuple(
        Turn(rng.choice((f"What is the {f}?", f"Give the {f}.", f"{f.capitalize()}?")), shown[f])
        for f in asked
    )
    if rng.random() < 0.4:
        one = asked[0]
        raw = f"{text}\n{one.capitalize()}:"
        return Job("extract_lines", (Turn(f"{text}\nGive the {one}.", shown[one]),), raw=raw)
    return Job("extract_lines", turns, context=text)


GENERATORS: dict[str, Callable[[random.Random, Words, int], Job]] = {
    "extract_json": to_json,
    "extract_indented": to_indented,
    "extract_lines": to_lines,
}
