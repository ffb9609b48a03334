"""Facts: sentences sampled from a seed, each with a question about it and its answer.

They are of the kind that the embedded model was trained on, so that it can answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words(
    """
    Ada Adam Agnes Alice Amir Anna Anton Arthur Bella Ben Bruno Carla Carl Celia Clara Dana David
    Diego Dora Edgar Elena Emil Emma Erik Eva Felix Fiona Frank Grace Greta Hana Harry Helen Hugo
    Ida Igor Irene Isaac Ivan Jack Jane Jonas Julia Karl Kate Kenji Laura Leo Liam Lina Lucas Luna
    Mara Marco Maria Max Mia Mina Nadia Nina Noah Nora Olga Oliver Omar Oscar Paul Peter Priya
    Rachel Ravi Rita Rosa Ruth Sara Simon Sofia Stella Theo Tom Uma Vera Victor Yara Zoe
    """
)
JOBS = _words(
    """
    baker barber builder captain chemist clerk cook dancer dentist detective doctor driver farmer
    gardener geologist guard judge lawyer librarian mechanic musician nurse painter pilot plumber
    poet sailor sculptor singer tailor teacher weaver writer
    """
)
CITIES = _words(
    """
    Athens Bergen Berlin Boston Cairo Chicago Dallas Delhi Denver Dublin Geneva Hamburg Hanoi
    Helsinki Kyoto Lagos Lima Lisbon London Lyon Madrid Miami Milan Munich Naples Oslo Oxford
    Paris Perth Porto Prague Quito Riga Rome Seattle Seoul Tokyo Toronto Turin Vienna Warsaw
    """
)
THINGS = _words(
    """
    basket bell blanket boat book bottle bowl box bucket candle carpet chair clock coin cup drum
    fan flag flute fork glass glove guitar hat jar kettle key lamp lantern letter map mirror
    necklace pencil piano pillow plate radio ring rope scarf spoon table teapot ticket towel tray
    vase violin wallet watch wheel whistle
    """
)
PLACES = _words(
    """
    attic bakery bank barn basement bridge cabin castle cellar church forest garage garden hall
    harbor hospital hotel kitchen library market meadow museum office park school shed stable
    station studio theater tower tunnel valley village
    """
)
COLOURS = _words("black blue brown gold gray green pink purple red silver white yellow")
ADJECTIVES = _words(
    """
    bright busy clean cold cosy damp dark dusty heavy huge large little lucky misty narrow noisy
    quiet rusty shiny silent sleepy small strange sunny tall tiny warm windy wooden young
    """
)
ANIMALS = _words("cat cow crab deer dog duck fox goat hawk hen horse lion mouse pig seal")


@dataclass(frozen=True)
class Fact:
    """``sentence`` says what ``question`` asks for: ``answer``, a word or two."""

    sentence: str
    question: str
    answer: str


def facts(draw: random.Random, count: int) -> list[Fact]:
    """``count`` (at most 130) facts, each about another person or thing."""
    people = min(len(NAMES), count - min(count // 3, len(THINGS)))
    found = [_of_person(draw, name) for name in draw.sample(NAMES, people)]
    found += [_of_thing(draw, thing) for thing in draw.sample(THINGS, count - people)]
    draw.shuffle(found)
    return found


def _of_person(draw: random.Random, name: str) -> Fact:
    kind = draw.randrange(4)
    if kind == 0:
        city = draw.choice(CITIES)
        return Fact(f"{name} lives in {city}.", f"Where does {name} live?", city)
    if kind == 1:
        job = draw.choice(JOBS)
        return Fact(f"{name} works as a {job}.", f"What is the job of {name}?", job)
    if kind == 2:
        age = str(draw.randint(10, 90))
        return Fact(f"{name} is {age} years old.", f"How old is {name}?", age)
    thing = f"{draw.choice(COLOURS)} {draw.choice(THINGS)}"
    return Fact(f"{name} has a {thing}.", f"What does {name} have?", thing)


def _of_thing(draw: random.Random, thing: str) -> Fact:
    if draw.random() < 0.5:
        place = draw.choice(PLACES)
        return Fact(f"The {thing} is in the {place}.", f"Where is the {thing}?", place)
    price = str(draw.randint(10, 990))
    return Fact(f"The {thing} costs {price} dollars.", f"How much is the {thing}?", price)


def filler(draw: random.Random) -> str:
    """A sentence that no question is about."""
    first, second = draw.sample(ADJECTIVES, 2)
    animal, place = draw.choice(ANIMALS), draw.choice(PLACES)
    return draw.choice(
        (
            f"It was a {first} day near the {place}.",
            f"A {first} {animal} sat by a {second} {draw.choice(THINGS)}.",
            f"Nobody saw the {animal} behind the {place}.",
            f"There was a {first} road from the {place} to the hills.",
        )
    )


def passage(draw: random.Random, told: list[Fact], sentences: int) -> str:
    """``told`` among fillers, ``sentences`` in all, in a random order."""
    text = [fact.sentence for fact in told]
    text += [filler(draw) for _ in range(sentences - len(told))]
    draw.shuffle(text)
    return " ".join(text)
