"""Following a pattern shown by examples, and the same operations requested by name."""

from __future__ import annotations

import random
from collections.abc import Callable

from tools.train_tiny import words as w
from tools.train_tiny.sample import Job, Turn
from tools.train_tiny.words import Words, words_of

GOOD = words_of(
    """
    amazing awesome beautiful brilliant charming delightful enjoyable excellent fantastic great
    lovely perfect pleasant superb terrific wonderful
    """
)
BAD = words_of(
    """
    annoying awful boring broken cheap disappointing dreadful dull horrible nasty poor sad
    terrible ugly useless weak
    """
)
SUBJECTS = words_of(
    """
    acting battery camera coffee dinner ending food hotel keyboard movie music phone plot room
    screen service show soup sound staff story waiter
    """
)


def review(rng: random.Random) -> tuple[str, str]:
    """A review and its sentiment."""
    positive = rng.random() < 0.5
    pool = GOOD if positive else BAD
    a, b = rng.sample(pool, 2)
    s, t = rng.sample(SUBJECTS, 2)
    text = rng.choice(
        (
            f"The {s} was {a}.",
            f"The {s} was {a} and the {t} was {b}.",
            f"I think the {s} is {a}.",
            f"What a {a} {s}!",
            f"{a.capitalize()} {s}, {b} {t}.",
            f"I loved the {s}, it was {a}." if positive else f"I hated the {s}, it was {a}.",
            f"The {s} is really {a}. I would come again."
            if positive
            else f"The {s} is really {a}. I want my money back.",
        )
    )
    return text, "positive" if positive else "negative"


def sentiment(rng: random.Random, words: Words, size: int) -> Job:
    """Positive or negative, with or without shots."""
    del words, size
    shots = [review(rng) for _ in range(rng.choice((0, 0, 1, 2, 3)))]
    text, label = review(rng)
    asked = [f"Review: {t}\nSentiment:" for t, _ in [*shots, (text, label)]]
    asked[1:] = [f"\n\n{a}" for a in asked[1:]]
    pairs = tuple((a, s) for a, (_, s) in zip(asked, shots, strict=False))
    whole = "".join(f"{a} {s}" for a, s in pairs) + asked[-1]
    question = rng.choice(
        (
            whole,
            f"Is this review positive or negative? {text}",
            f"What is the sentiment of this review?\n{text}",
            f"Classify the sentiment as positive or negative: {text}",
        )
    )
    return Job("pattern_sentiment", (Turn(question, label),), raw=asked[-1], shots=pairs)


Operation = Callable[[random.Random, Words], tuple[str, str]]


def upper(rng: random.Random, words: Words) -> tuple[str, str]:
    word = words.either(rng, rng.choice((w.ANIMALS, w.FRUITS, w.COLOURS, w.OBJECTS)))
    return word, word.upper()


def capitalise(rng: random.Random, words: Words) -> tuple[str, str]:
    word = words.either(rng, rng.choice((w.ANIMALS, w.FRUITS, w.COLOURS, w.OBJECTS)))
    return word, word.capitalize()


def swap(rng: random.Random, words: Words) -> tuple[str, str]:
    a, b = words.pick(rng, w.ADJECTIVES), words.things(rng, 1)[0]
    return f"{a} {b}", f"{b} {a}"


def first_word(rng: random.Random, words: Words) -> tuple[str, str]:
    items = words.things(rng, 3)
    return " ".join(items), items[0]


def last_word(rng: random.Random, words: Words) -> tuple[str, str]:
    items = words.things(rng, 3)
    return " ".join(items), items[-1]


def reverse_three(rng: random.Random, words: Words) -> tuple[str, str]:
    items = words.things(rng, 3)
    return " ".join(items), " ".join(reversed(items))


def twice(rng: random.Random, words: Words) -> tuple[str, str]:
    word = words.invented(rng)
    return word, f"{word} {word}"


def copy(rng: random.Random, words: Words) -> tuple[str, str]:
    text = words.things(rng, 1)[0]
    if rng.random() < 0.6:
        text = f"{words.invented(rng)} {text}"
    return text, text


def plural(rng: random.Random, words: Words) -> tuple[str, str]:
    word = words.invented(rng)
    return word, word + "s"


def antonym(rng: random.Random, words: Words) -> tuple[str, str]:
    del words
    word = rng.choice(list(w.ANTONYMS))
    return word, w.ANTONYMS[word]


def capital(rng: random.Random, words: Words) -> tuple[str, str]:
    del words
    country = rng.choice(list(w.CAPITALS))
    return country, w.CAPITALS[country]


def kind_of(rng: random.Random, words: Words) -> tuple[str, str]:
    name = rng.choice(("fruit", "animal", "tool", "vegetable", "sport", "color"))
    item = words.member(rng, w.CATEGORIES[name + "s"])
    return item, name


OPERATIONS: dict[str, tuple[Operation, tuple[str, ...]]] = {
    "upper": (upper, ("Write in uppercase: {}", "Uppercase: {}", "Convert to uppercase: {}")),
    "capitalise": (capitalise, ("Capitalize: {}", "Write with a capital letter: {}")),
    "swap": (swap, ("Swap the two words: {}", "Reverse the order of the words: {}")),
    "first": (first_word, ("What is the first word of: {}", "First word: {}")),
    "last": (last_word, ("What is the last word of: {}", "Last word: {}")),
    "reverse": (reverse_three, ("Reverse the order of the words: {}",)),
    "twice": (twice, ("Write twice: {}", "Say it twice: {}")),
    "copy": (copy, ("Repeat: {}", "Copy this: {}", "Say: {}")),
    "plural": (plural, ("Add an s: {}",)),
    "antonym": (antonym, ("What is the opposite of {}?", "Opposite of {}")),
    "capital": (capital, ("What is the capital of {}?", "Capital of {}?")),
    "kind": (kind_of, ("Is this a fruit, animal, tool, vegetable, sport or color? {}",)),
}


def instructed(rng: random.Random, words: Words, size: int) -> Job:
    """The operation is named; two or three in a row."""
    del size
    turns = []
    for _ in range(rng.randint(1, 3)):
        operation, wordings = rng.choice(list(OPERATIONS.values()))
        given, wanted = operation(rng, words)
        turns.append(Turn(rng.choice(wordings).format(given), wanted))
    return Job("pattern_named", tuple(turns))


def few_shot(rng: random.Random, words: Words, size: int) -> Job:
    """The operation is only shown by two to five pairs."""
    del size
    operation, _ = rng.choice(list(OPERATIONS.values()))
    pairs: dict[str, str] = {}
    wanted = rng.randint(3, 6)
    while len(pairs) < wanted:
        given, result = operation(rng, words)
        pairs[given] = result
    return _shots("pattern_shots", rng, list(pairs.items()))


def made_up_labels(rng: random.Random, words: Words, size: int) -> Job:
    """Labels that mean nothing outside the shots: each class of word has an invented one."""
    del size
    classes = rng.sample(("fruits", "animals", "tools", "sports", "colors"), 2)
    labels = words.sample(rng, w.OBJECTS + w.PLACES, 2)
    if rng.random() < 0.5:
        labels = [words.invented(rng) for _ in classes]
    pairs = []
    for number in range(rng.randint(4, 6)):
        index = number if number < 2 else rng.randrange(2)
        pairs.append((rng.choice(w.CATEGORIES[classes[index]]), labels[index]))
    head, last = pairs[:-1], pairs[-1]
    rng.shuffle(head)
    return _shots("pattern_labels", rng, [*head, last])


def _shots(task: str, rng: random.Random, pairs: list[tuple[str, str]]) -> Job:
    """Write pairs as shots; the result of the last pair is the question."""
    left, right, gap = rng.choice(
        (
            ("Input: ", "\nOutput:", "\n"),
            ("Input: ", "\nOutput:", "\n\n"),
            ("", " ->", "\n"),
            ("", " =>", "\n"),
            ("Q: ", "\nA:", "\n"),
            ("Text: ", "\nLabel:", "\n"),
            ("Word: ", "\nAnswer:", "\n\n"),
        )
    )
    texts = [f"{gap if index else ''}{left}{a}{right}" for index, (a, _) in enumerate(pairs)]
    shots = tuple((text, b) for text, (_, b) in zip(texts, pairs[:-1], strict=False))
    whole = "".join(f"{text} {b}" for text, b in shots) + texts[-1]
    if rng.random() < 0.25:
        turns = tuple(Turn(a, "", b) if i < 2 else Turn(a, b) for i, (a, b) in enumerate(pairs))
        return Job(task, turns)
    turn = Turn(whole, pairs[-1][1])
    return Job(task, (turn,), raw=texts[-1], shots=shots, known_shots=2)


GENERATORS: dict[str, Callable[[random.Random, Words, int], Job]] = {
    "pattern_sentiment": sentiment,
    "pattern_named": instructed,
    "pattern_shots": few_shot,
    "pattern_labels": made_up_labels,
}
