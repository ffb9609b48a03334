"""Yes or no, and multiple choice, by a rule that the question states."""

from __future__ import annotations

import random
from collections.abc import Callable

from tools.train_tiny import words as w
from tools.train_tiny.sample import Job, Turn
from tools.train_tiny.words import CATEGORIES, Words

LETTERS = "ABCD"


def yes_no(flag: bool) -> str:
    """`yes` or `no`."""
    return "yes" if flag else "no"


def near(rng: random.Random, value: int) -> int:
    """Another number, often a close one, so comparing needs all digits."""
    if rng.random() < 0.5:
        return max(1, value + rng.choice((-9, -3, -2, -1, 1, 2, 3, 10)))
    return rng.randrange(1, 1000 if value > 99 else 100)


def compare(rng: random.Random, words: Words, size: int) -> Job:
    """Bigger and smaller, odd and even; a few questions in a row."""
    del words, size
    turns = []
    for _ in range(rng.choice((1, 2, 4, 5))):
        a = rng.randrange(1, 1000 if rng.random() < 0.4 else 100)
        b = near(rng, a)
        while b == a:
            b = near(rng, a)
        big, small = max(a, b), min(a, b)
        turns.append(
            rng.choice(
                (
                    Turn(f"Is {a} bigger than {b}?", yes_no(a > b)),
                    Turn(f"Is {a} greater than {b}? Answer yes or no.", yes_no(a > b)),
                    Turn(f"Is {a} smaller than {b}?", yes_no(a < b)),
                    Turn(f"Which is bigger, {a} or {b}?", str(big)),
                    Turn(f"Which number is larger: {a} or {b}?", str(big)),
                    Turn(f"Which is smaller, {a} or {b}?", str(small)),
                    Turn(f"Is {a} odd or even?", "odd" if a % 2 else "even"),
                    Turn(f"Is {a} an even number?", yes_no(a % 2 == 0)),
                    Turn(f"Is {a} odd? Answer yes or no.", yes_no(a % 2 == 1)),
                )
            )
        )
    return Job("choice_numbers", tuple(turns))


def membership(rng: random.Random, words: Words, size: int) -> Job:
    """Is it in the list, does the statement agree with the fact, does the word start with b."""
    del size
    kind = rng.randrange(3)
    if kind == 0:
        items = words.things(rng, rng.randint(4, 8))
        turns = []
        present, absent = items[:-2], items[-2:]
        for _ in range(rng.randint(1, 4)):
            inside = rng.random() < 0.5
            item = rng.choice(present if inside else absent)
            wording = rng.choice(("Is {} in the list?", "Does the list contain {}?"))
            turns.append(Turn(wording.format(item), yes_no(inside)))
        return Job("choice_yes_no", tuple(turns), context=f"List: {', '.join(present)}.")
    if kind == 1:
        names = words.firsts(rng, rng.randint(2, 4))
        homes = [words.city(rng) for _ in names]
        body = " ".join(f"{n} lives in {h}." for n, h in zip(names, homes, strict=True))
        turns = []
        for _ in range(rng.randint(1, 3)):
            index = rng.randrange(len(names))
            claim = homes[index] if rng.random() < 0.5 else rng.choice(homes)
            question = f"Does {names[index]} live in {claim}?"
            turns.append(Turn(question, yes_no(claim == homes[index])))
        return Job("choice_yes_no", tuple(turns), context=body)
    turns = []
    for _ in range(rng.randint(1, 4)):
        word = words.either(rng, w.FRUITS + w.ANIMALS + w.OBJECTS + w.CITIES)
        letter = word[0].lower() if rng.random() < 0.5 else rng.choice("abcdefghklmnoprstw")
        flag = word.lower().startswith(letter)
        turns.append(Turn(f"Does {word} start with the letter {letter}?", yes_no(flag)))
    return Job("choice_yes_no", tuple(turns))


def oldest(rng: random.Random, words: Words, size: int) -> Job:
    """The oldest or youngest of several people."""
    del size
    names = words.firsts(rng, rng.randint(2, 4))
    ages = rng.sample(range(3, 99), len(names))
    style = rng.choice(("{} is {} years old.", "{} is {}.", "{}: {}"))
    joint = "\n" if style.endswith("}") else " "
    body = joint.join(style.format(n, a) for n, a in zip(names, ages, strict=True))
    by_age = sorted(zip(ages, names, strict=True))
    turns = [Turn("Who is the oldest?", by_age[-1][1]), Turn("Who is the youngest?", by_age[0][1])]
    rng.shuffle(turns)
    turns = turns[: rng.randint(1, 2)]
    if not words.held_out:  # more questions about one text teach more
        for _ in range(rng.randint(0, 2)):
            (_, one), (_, other) = sorted(rng.sample(by_age, 2))
            pair = rng.choice((f"{one} or {other}", f"{other} or {one}"))
            older = Turn(f"Who is older, {pair}?", other)
            most = Turn("How old is the oldest?", str(by_age[-1][0]))
            least = Turn("How old is the youngest?", str(by_age[0][0]))
            turns += [
                rng.choice((older, Turn(f"Who is younger, {pair}?", one))),
                rng.choice((most, least)),
            ]
        rng.shuffle(turns)
    return Job("choice_oldest", tuple(turns), context=body)


def options_of(rng: random.Random, items: list[str]) -> str:
    """Options A to D, one a line."""
    mark = rng.choice(("{}. {}", "{}. {}", "({}) {}", "{}) {}"))
    return "\n".join(mark.format(LETTERS[i], item) for i, item in enumerate(items))


def multiple_choice(rng: random.Random, words: Words, size: int) -> Job:
    """Pick the letter of the option that the rule names."""
    del size
    count = rng.choice((2, 3, 4, 4, 4))
    kind = rng.randrange(4 if words.held_out else 5)
    if kind == 4:  # the step that the other kinds end with, alone
        items = words.things(rng, count)
        right = rng.randrange(count)
        question = rng.choice(("Which option is {}?", "What is the letter of {}?", "Find {}."))
        question = question.format(items[right])
    elif kind == 0:
        values = rng.sample(range(1, 100), count)
        rule = rng.choice(("largest", "smallest"))
        right = values.index(max(values) if rule == "largest" else min(values))
        question, items = f"Which number is the {rule}?", [str(v) for v in values]
    elif kind == 1:
        chosen, other = rng.sample(sorted(CATEGORIES)[:6], 2)
        items = rng.sample(CATEGORIES[other], count)
        right = rng.randrange(count)
        items[right] = rng.choice([x for x in CATEGORIES[chosen] if x not in CATEGORIES[other]])
        question = f"Which of these belongs to the {chosen}?"
    elif kind == 2:
        name, items = words.first(rng), words.things(rng, count)
        right = rng.randrange(count)
        question = f"{name} has a {items[right]}. What does {name} have?"
    else:
        items = [words.first(rng) for _ in range(count)]
        cities = words.sample(rng, w.CITIES, count)
        order = list(range(count))
        rng.shuffle(order)
        right = rng.randrange(count)
        body = " ".join(f"{items[i]} lives in {cities[i]}." for i in order)
        question = f"{body} Who lives in {cities[right]}?"
    tail = rng.choice(("", "\nAnswer with the letter.", "\nAnswer with A, B, C or D."))
    text = f"{question}\n{options_of(rng, items)}{tail}"
    return Job("choice_letter", (Turn(text, LETTERS[right]),), raw=f"{text}\nAnswer:")


GENERATORS: dict[str, Callable[[random.Random, Words, int], Job]] = {
    "choice_numbers": compare,
    "choice_yes_no": membership,
    "choice_oldest": oldest,
    "choice_letter": multiple_choice,
}
