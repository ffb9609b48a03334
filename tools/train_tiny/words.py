"""Hand-written word lists, and the split into words for training and words held out.

A held-out word never appears in a training sample in the role of something to copy, so a right
answer about it shows copying rather than memory. Many names are built from syllables: the space of
such names is too large to memorise, which is what makes the model learn to copy at all.
"""

from __future__ import annotations

import random
import zlib


def words_of(text: str) -> list[str]:
    """The words of a text, so that lists can be written as plain text."""
    return text.split()


FIRST_NAMES = words_of(
    """
    Ada Adam Agnes Alice Amir Anna Anton Arthur Astrid Bella Ben Bruno Carla Carl Celia Chen Clara
    Dana Daniel David Diego Dora Edgar Elena Eli Ella Emil Emma Erik Eva Felix Fiona Frank Freya
    George Gina Grace Greta Hana Hannah Harry Hector Helen Henry Hugo Ida Igor Ines Irene Isaac
    Ivan Jack Jane Jasper Joan John Jonas Julia Karl Kate Kenji Kira Lara Laura Leo Liam Lina
    Lucas Lucy Luis Luna Magnus Mara Marco Maria Mark Martin Mary Max Mia Milo Mina Nadia Nina
    Noah Nora Olga Oliver Omar Oscar Paul Peter Petra Priya Quinn Rachel Ravi Rita Robert Rosa
    Ruth Sam Sara Simon Sofia Stella Tara Theo Thomas Tom Uma Vera Victor Walter Wendy Yara Yusuf
    Zara Zoe Harper Ron Hermione Draco
    """
)

SURNAMES = words_of(
    """
    Abbott Adler Baker Barnes Bell Black Brooks Brown Carter Clark Cole Cooper Cross Dale Dean
    Dixon Drake Ellis Evans Fisher Ford Fox Frost Garcia Gray Green Hale Hall Harris Hayes Hill
    Holt Hunt Irving Jensen Jones Keller Kent King Klein Knight Lane Larsen Lee Lopez Lowe Lund
    Marsh Mason Meyer Miller Moore Moss Nash Novak Olsen Park Parker Patel Perez Pike Potter Price
    Quill Reed Reyes Rossi Sato Scott Shaw Silva Singh Smith Snow Stone Swift Tanaka Thorne Turner
    Vance Wagner Walker Wang Ward Weber West White Wolfe Wood Wright Young Granger Weasley
    """
)

JOBS = words_of(
    """
    actor architect artist astronomer baker barber biologist builder butcher captain carpenter
    chemist clerk coach cook dancer dentist designer detective doctor driver editor engineer
    farmer firefighter fisherman gardener geologist guard guide inventor jeweler judge lawyer
    librarian mechanic merchant miner musician nurse painter pharmacist photographer pilot plumber
    poet potter professor sailor scientist sculptor singer soldier student surgeon tailor teacher
    translator vet waiter weaver writer
    """
)

TRAITS = words_of(
    """
    brave calm careful cheerful clever curious daring determined eager fair fearless friendly
    funny generous gentle honest humble kind lively loyal modest neat patient polite proud quick
    quiet rash serious shy sincere stubborn tidy tough warm wise witty
    """
)

CITIES = words_of(
    """
    Amsterdam Athens Austin Bergen Berlin Bogota Boston Bristol Cairo Chicago Cork Dallas Delhi
    Denver Dover Dublin Geneva Genoa Hamburg Hanoi Havana Helsinki Istanbul Kyoto Lagos Leeds Lima
    Lisbon London Lyon Madrid Manila Miami Milan Munich Nairobi Naples Oslo Oxford Paris Perth
    Porto Prague Quito Riga Rome Seattle Seoul Sofia Tokyo Toronto Turin Vienna Warsaw York Zurich
    """
)

COUNTRIES = words_of(
    """
    France Japan Italy Spain Norway Egypt Kenya Peru Chile India China Brazil Canada Mexico Greece
    Turkey Poland Sweden Finland Denmark Ireland Portugal Austria Hungary Iceland Morocco Ghana
    Nigeria Vietnam Thailand Nepal Cuba Bolivia Ecuador Belgium Croatia Estonia Latvia Germany
    Russia Ukraine Jordan
    """
)

FRUITS = words_of(
    """
    apple apricot banana blueberry cherry coconut date fig grape kiwi lemon lime mango melon
    orange papaya peach pear pineapple plum raspberry strawberry
    """
)
VEGETABLES = words_of(
    """
    bean beet broccoli cabbage carrot celery corn cucumber garlic kale leek lettuce onion pea
    pepper potato pumpkin radish spinach tomato turnip
    """
)
ANIMALS = words_of(
    """
    ant bat bear bee cat cow crab deer dog dolphin duck eagle elephant fox frog goat hamster hawk
    hen horse lion monkey mouse otter owl panda parrot penguin pig rabbit seal shark sheep snake
    spider squirrel tiger turtle whale wolf zebra
    """
)
COLOURS = words_of(
    """
    amber black blue bronze brown crimson cyan gold gray green indigo ivory lime magenta navy
    olive orange pink purple red scarlet silver teal turquoise violet white yellow
    """
)
TOOLS = words_of(
    """
    anvil axe brush chisel drill file hammer hoe knife ladder pliers rake ruler saw screwdriver
    shovel spade tape wrench
    """
)
OBJECTS = words_of(
    """
    bag ball basket bell blanket boat book bottle bowl box bucket button candle carpet chair clock
    coin cup desk door drum fan flag flute fork glass glove guitar hat jar kettle key lamp lantern
    letter lock map mirror necklace pan pen pencil phone piano pillow plate pot radio ring rope
    rug scarf shelf shirt shoe spoon table teapot telescope ticket towel toy tray umbrella vase
    violin wallet watch wheel whistle window
    """
)
PLACES = words_of(
    """
    airport attic bakery bank barn basement bridge cabin cafe castle cave cellar church clinic
    closet drawer farm forest garage garden gym hall harbor hospital hotel island kitchen lab lake
    library market meadow mine museum office park pier school shed shop stable stadium station
    store studio temple theater tower tunnel valley village
    """
)
ADJECTIVES = words_of(
    """
    ancient bitter bold brief bright broad broken busy cheap clean clear cloudy cold cosy crisp
    damp dark deep dusty dull eager empty faint fancy fast flat fresh full glad grand grim handy
    happy harsh heavy hollow huge icy jolly keen large late lazy light little loose loud lucky
    mellow mild misty muddy narrow noble noisy odd old pale plain pretty rapid rare raw ready rich
    ripe rough round royal rusty salty sharp shiny short silent silly simple sleepy slim slow
    small smart smooth soft solid sour spicy steady steep stiff strange strong sunny sweet swift
    tall tame tense thick thin tiny tired torpid vivid wet wide wild windy wooden young
    """
)
VERBS = words_of(
    """
    bake bring build buy carry catch check clean climb cook count cut dig draw drink drive eat
    feed find fix fold grow help hide hold jump keep kick learn lift make mend mix move open pack
    paint plan plant play pull push read rest ride run sell send sew sing sleep sort stir study
    sweep swim teach throw visit walk wash watch water write
    """
)
DAYS = words_of("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words_of(
    "January February March April May June July August September October November December"
)
HOUSES = words_of(
    """
    Gryffindor Slytherin Hufflepuff Ravenclaw Falcon Otter Ember Willow Raven Lynx Maple Heron
    Thistle Cedar Badger Comet
    """
)
SPORTS = words_of(
    """
    archery badminton baseball basketball boxing chess cricket cycling fencing football golf
    hockey judo rowing rugby running sailing skating skiing surfing swimming tennis volleyball
    wrestling
    """
)

ANTONYMS = dict(
    pair.split(":")
    for pair in words_of(
        """
        hot:cold big:small fast:slow happy:sad up:down open:closed day:night light:dark tall:short
        old:young rich:poor hard:soft early:late full:empty left:right high:low clean:dirty
        wet:dry loud:quiet near:far strong:weak thick:thin sweet:sour sharp:dull good:bad
        true:false push:pull buy:sell start:stop win:lose brave:afraid wide:narrow deep:shallow
        rough:smooth
        """
    )
)
ANTONYMS |= {value: key for key, value in ANTONYMS.items()}

CAPITALS = dict(
    pair.split(":")
    for pair in words_of(
        """
        France:Paris Japan:Tokyo Italy:Rome Spain:Madrid Norway:Oslo Egypt:Cairo Kenya:Nairobi
        Peru:Lima Germany:Berlin Russia:Moscow Greece:Athens Portugal:Lisbon Austria:Vienna
        Ireland:Dublin Cuba:Havana Poland:Warsaw Finland:Helsinki Vietnam:Hanoi Latvia:Riga
        """
    )
)

CATEGORIES: dict[str, list[str]] = {
    "fruits": FRUITS,
    "vegetables": VEGETABLES,
    "animals": ANIMALS,
    "colors": COLOURS,
    "tools": TOOLS,
    "sports": SPORTS,
    "jobs": JOBS,
    "cities": CITIES,
    "countries": COUNTRIES,
}

ALL_WORDS = [
    word
    for words in (
        *(JOBS, TRAITS, FRUITS, VEGETABLES, ANIMALS, COLOURS, TOOLS, OBJECTS, PLACES),
        *(ADJECTIVES, VERBS, SPORTS, CITIES, FIRST_NAMES, SURNAMES),
    )
    for word in words
]
KNOWN_WORDS = frozenset(word.lower() for word in ALL_WORDS)

ONSETS = words_of("b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t th tr v w z")
VOWELS = words_of("a e i o u ai ea ia oo")
CODAS = ["", "", "", "l", "m", "n", "r", "s", "t", "x", "nd", "ck", "rn", "sk"]

HELD_OUT_EVERY = 7
OPEN_SHARE = 0.3
"""Share of the training words in a role that are no members of its list. Without them a model
learns the lists, and completes the start of a word it has to copy to one that it knows."""


def pseudo_word(rng: random.Random, held_out: bool, syllables: int = 2) -> str:
    """A pronounceable invented word; a checksum decides which of them are held out."""
    while True:
        word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(syllables))
        word += rng.choice(CODAS)
        if (zlib.crc32(word.encode()) % HELD_OUT_EVERY == 0) == held_out:
            return word


class Words:
    """Picks words from one side of the split."""

    def __init__(self, held_out: bool) -> None:
        self.held_out = held_out

    def stranger(self, rng: random.Random) -> str:
        """A word of no list: invented, or the start of one word with the end of another."""
        if rng.random() < 0.5:
            return self.invented(rng)
        while True:
            start, end = rng.choice(ALL_WORDS).lower(), rng.choice(ALL_WORDS).lower()
            word = start[: rng.randint(2, 5)] + end[-rng.randint(2, 4) :]
            if zlib.crc32(word.encode()) % HELD_OUT_EVERY and word not in KNOWN_WORDS:
                return word

    def opened(self, rng: random.Random, word: str) -> str:
        """The word, or in training now and then a stranger in its place, capitalised alike."""
        if self.held_out or rng.random() >= OPEN_SHARE:
            return word
        stranger = self.stranger(rng)
        return stranger.capitalize() if word[0].isupper() else stranger

    def either(self, rng: random.Random, words: list[str]) -> str:
        """One word of either side, for jobs that need its spelling: nothing in a prompt says how
        the token of a whole word is spelt, so words held out could not be right."""
        return self.opened(rng, rng.choice(words))

    def side(self, words: list[str]) -> list[str]:
        """The part of a list that belongs to this side."""
        return [w for i, w in enumerate(words) if (i % HELD_OUT_EVERY == 3) == self.held_out]

    def pick(self, rng: random.Random, words: list[str]) -> str:
        """One word of this side, in training now and then a stranger."""
        return self.opened(rng, self.member(rng, words))

    def member(self, rng: random.Random, words: list[str]) -> str:
        """One word of this side, for jobs that depend on its meaning."""
        index = rng.randrange(len(words))
        while (index % HELD_OUT_EVERY == 3) != self.held_out:
            index = rng.randrange(len(words))
        return words[index]

    def sample(self, rng: random.Random, words: list[str], count: int) -> list[str]:
        """Different words, of this side if it has enough of them, and strangers in training."""
        side = self.side(words)
        chosen = rng.sample(side if len(side) >= count else words, count)
        opened = [self.opened(rng, word) for word in chosen]
        return opened if len(set(opened)) == count else chosen

    def invented(self, rng: random.Random) -> str:
        """An invented word."""
        return pseudo_word(rng, self.held_out, rng.choice((1, 2, 2)))

    def first(self, rng: random.Random) -> str:
        """A first name, invented half of the time."""
        if rng.random() < 0.5:
            return self.invented(rng).capitalize()
        return self.pick(rng, FIRST_NAMES)

    def firsts(self, rng: random.Random, count: int) -> list[str]:
        """Different first names."""
        return distinct(lambda: self.first(rng), count)

    def surname(self, rng: random.Random) -> str:
        """A family name, invented half of the time."""
        if rng.random() < 0.5:
            return self.invented(rng).capitalize()
        return self.pick(rng, SURNAMES)

    def city(self, rng: random.Random) -> str:
        """A city, invented now and then."""
        return self.invented(rng).capitalize() if rng.random() < 0.3 else self.pick(rng, CITIES)

    def things(self, rng: random.Random, count: int) -> list[str]:
        """Different concrete nouns of one list."""
        pool = rng.choice((OBJECTS, OBJECTS, ANIMALS, FRUITS, TOOLS, VEGETABLES, COLOURS))
        return self.sample(rng, pool, count)


def distinct(draw: object, count: int) -> list[str]:
    """Call `draw` until it has given `count` different words."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw()] = None  # type: ignore[operator]
    return list(found)
