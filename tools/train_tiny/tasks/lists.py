"""Short lists, one-sentence summaries, and advice that a program expands item by item."""

from __future__ import annotations

import random
from collections.abc import Callable

from tools.train_tiny import words as w
from tools.train_tiny.sample import Job, Turn
from tools.train_tiny.words import CATEGORIES, Words, words_of

COUNTS = {"two": 2, "three": 3, "four": 4, "five": 5}

TIPS: dict[str, list[str]] = {
    goal: tips.split(";")
    for goal, tips in {
        "stay healthy": "eat vegetables;drink water;sleep eight hours;walk every day;stretch",
        "sleep well": "read a book;turn off the phone;keep the room dark;drink warm milk",
        "save money": "cook at home;make a budget;buy used things;compare prices",
        "learn a language": "read stories;listen to songs;speak with friends;write a diary",
        "write better": "read a lot;use short words;edit twice;start early",
        "work in a team": "listen first;share the plan;ask for help;say thanks",
        "grow a garden": "water the plants;choose good soil;remove the weeds;plant in spring",
        "write good code": "use clear names;write tests;keep functions short;read the docs",
    }.items()
}


def numbered(items: list[str]) -> str:
    """`1. a` and so on, one a line."""
    return "\n".join(f"{i}. {item}" for i, item in enumerate(items, start=1))


def bulleted(items: list[str]) -> str:
    """`- a` and so on, one a line."""
    return "\n".join(f"- {item}" for item in items)


def following(rng: random.Random, members: list[str], count: int) -> list[str]:
    """Members that stand one after the other, the first after the last, from any on. What comes
    next is certain, so a greedy answer repeats none."""
    first = rng.randrange(len(members))
    return [members[(first + i) % len(members)] for i in range(count)]


def named(rng: random.Random, words: Words, size: int) -> Job:
    """`List three fruits.`: any members of the category will do."""
    del words, size
    category = rng.choice(sorted(CATEGORIES))
    count_word = rng.choice(sorted(COUNTS))
    items = following(rng, sorted(CATEGORIES[category]), COUNTS[count_word])
    shown = count_word if rng.random() < 0.7 else str(COUNTS[count_word])
    question = rng.choice(
        ("List {} {}.", "Name {} {}.", "Give me {} {}.", "Write a list of {} {}.")
    ).format(shown, category)
    return Job("list_category", (Turn(question, numbered(items)),))


def from_items(rng: random.Random, words: Words, size: int) -> Job:
    """A list written from items given in the prompt."""
    del size
    items = words.things(rng, rng.randint(2, 5))
    if rng.random() < 0.3:
        items = [words.invented(rng) for _ in items]
    given = rng.choice((", ".join(items), ", ".join(items[:-1]) + " and " + items[-1]))
    question, answer = rng.choice(
        (
            (f"Write as a numbered list: {given}", numbered(items)),
            (f"Make a numbered list of these items: {given}.", numbered(items)),
            (f"Write as a list with dashes: {given}", bulleted(items)),
            (f"Turn this into a bullet list: {given}", bulleted(items)),
            (f"Join with commas: {'; '.join(items)}", ", ".join(items)),
            (f"Write on one line with commas:\n{bulleted(items)}", ", ".join(items)),
            (f"How many items are in this list? {', '.join(items)}", str(len(items))),
            (f"What is item {len(items)} of this list?\n{numbered(items)}", items[-1]),
            (f"What is item 2 of this list?\n{numbered(items)}", items[1]),
        )
    )
    return Job("list_items", (Turn(question, answer),))


def summary(rng: random.Random, words: Words, size: int) -> Job:
    """A sentence with the actor, act, time and site of a paragraph that says more than that."""
    del size
    name, other = words.firsts(rng, 2)
    verb, thing = words.pick(rng, w.VERBS), words.pick(rng, w.OBJECTS)
    place, city = words.pick(rng, w.PLACES), words.city(rng)
    day, weather = rng.choice(w.DAYS), rng.choice(words_of("sunny windy cold warm rainy"))
    kind = rng.randrange(3)
    if kind == 0:
        first = f"{name} went to the {place} in {city} on {day}."
        answer = f"{name} went to the {place} in {city} and met {other}."
        second = f"There {name} met {other}, an old friend."
    elif kind == 1:
        first = f"{name} lost a {thing} in the {place} on {day}."
        answer = f"{name} lost a {thing} and {other} found it."
        second = f"Later {other} found the {thing} and gave it back."
    else:
        first = f"On {day} {name} decided to {verb} in {city}."
        answer = f"{name} decided to {verb} and {other} helped."
        second = f"{other} came along and helped."
    extra = rng.choice(
        (f"It was a {weather} day.", f"The weather was {weather}.", "Many people were around.")
    )
    middle = [first, extra] if rng.random() < 0.5 else [extra, first]
    text = " ".join([*middle, second])
    question = rng.choice(
        ("Summarize the text in one sentence.", "Write a one-sentence summary.", "Summary?")
    )
    return Job("list_summary", (Turn(f"{text}\n{question}", answer),), raw=f"{text}\nSummary:")


def tips(rng: random.Random, words: Words, size: int) -> Job:
    """Write pieces of advice, or expand one of them into a sentence."""
    del words, size
    goal = rng.choice(sorted(TIPS))
    if rng.random() < 0.4:
        count_word = rng.choice(("two", "three"))
        items = following(rng, TIPS[goal], COUNTS[count_word])
        wording = rng.choice(("Give {} tips to {}.", "Write {} tips to {}.", "List {} tips to {}."))
        return Job("list_tips", (Turn(wording.format(count_word, goal), numbered(items)),))
    tip = rng.choice(rng.choice(list(TIPS.values())))
    wording = rng.choice(
        (
            "Expand this tip to {} into a sentence: {}",
            "The goal is to {}. Write one sentence about this tip: {}",
        )
    )
    answer = f"If you want to {goal}, {tip}."
    return Job("list_expand", (Turn(wording.format(goal, tip), answer),))


GENERATORS: dict[str, Callable[[random.Random, Words, int], Job]] = {
    "list_category": named,
    "list_items": from_items,
    "list_summary": summary,
    "list_tips": tips,
}
