"""The byte-level BPE tokenizer, trained on the recipe's own text.

Digits are split one by one, so that numbers are copied and added digit by digit. A space is a token
of its own, except before a few function words and punctuation marks: a word that stands after a
space in the prompt and after a quote or a line break in the answer is then the same token twice,
and copying it needs no table of spellings. A share of plain English and code-like text is mixed
in, so that ordinary prompts do not fall apart into bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.train_tiny import words as w
from tools.train_tiny.sample import SPECIAL_TOKENS
from tools.train_tiny.tasks import draw
from tools.train_tiny.words import Words, words_of

JOINED = words_of(
    """
    a about all also an and any are as at be because been but by can could did do does for from get
    had has have he her his how I if in into is it its just like many more most much must my near
    need next not of off on one only or other our out over own said same she should so some such
    than that the their them then there these they this those through to under up upon us very was
    we were what when where which while who why will with would years you your Which Who What Where
    When How Is Does Add The
    """
)
"""Words that keep the space before them: they are frequent and seldom copied."""

PIECES = "|".join(
    (
        rf" (?:{'|'.join(JOINED)})(?!\p{{L}})",
        r"\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+",
        r"\n+",
        r" +",
        r"\s",
    )
)

COMMON = words_of(
    """
    a able about above across after again against all almost also always am among an and another
    any are around as ask at away back be because been before began being below best better
    between both but by call came can cannot case change child city close come could day did
    different do does done down during each early easy either else end enough even every example
    face fact family far feel few field first follow for form found friend from gave general get
    give go going gone good got great group had hand hard has have he head hear help her here high
    him his home house how however idea if important in inside into is it its just kind knew know
    large last later learn least leave left less let life light like line list little live long
    look made make man many may mean might mind money more most move much must my name near need
    never new next night no not nothing now number of off often old on once one only open or order
    other our out over own page part people perhaps place plan point power problem public question
    quite rather reason right room said same saw say school second see seem seen sentence set
    several shall she should show side since small so some something soon start state still story
    such sure system take talk tell text than that the their them then there these they thing
    think this those thought three through time to today together told too took toward turn two
    under until up upon us use user very want was water way we week well went were what when where
    whether which while who whole why will with within without word work world would write year
    yes yet you your
    """
)

CODE = (
    "def {a}({b}, {c}):\n    return {b} + {c}\n",
    "for {a} in range({n}):\n    print({a})\n",
    "if {a} == {n}:\n    {b} = None\nelse:\n    {b} = {c}\n",
    "import {a}\nfrom {b} import {c}\n",
    "class {a}:\n    def __init__(self, {b}):\n        self.{b} = {b}\n",
    '{{"{a}": {n}, "{b}": "{c}", "items": [1, 2, 3]}}\n',
    '<p class="{a}">{b}</p>\n',
    "https://www.{a}.com/{b}?{c}={n}\n",
)


def plain_text(rng: random.Random) -> str:
    """English words in a row, or a line of code."""
    if rng.random() < 0.3:
        names = {key: rng.choice(COMMON) for key in "abc"}
        return rng.choice(CODE).format(n=rng.randrange(100), **names)
    count = rng.randint(6, 14)
    sentence = " ".join(rng.choice(COMMON) for _ in range(count)).capitalize()
    return sentence + rng.choice((".", ".", "?", "!", ", " + rng.choice(COMMON) + "."))


def text_stream(seed: int, samples: int) -> Iterator[str]:
    """Text the merges are learnt from."""
    rng = random.Random(f"tokenizer {seed}")
    words = Words(held_out=False)
    pools = (w.FIRST_NAMES, w.SURNAMES, w.CITIES, w.COUNTRIES, w.OBJECTS, w.ADJECTIVES, w.VERBS)
    for _ in range(samples):
        sample = draw(rng, words, rng.randrange(30, 120))
        for part in sample.parts:
            text = part.text
            for special in SPECIAL_TOKENS:
                text = text.replace(special, " ")
            yield text
        if rng.random() < 0.5:
            yield plain_text(rng)
        if rng.random() < 0.2:
            yield " ".join(rng.choice(rng.choice(pools)) for _ in range(8))


def train_tokenizer(seed: int, vocab_size: int, samples: int) -> Tokenizer:
    """Learn the merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(text_stream(seed, samples), trainer)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer that was saved."""
    return Tokenizer.from_file(str(path))


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that the tokenizer has."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found
