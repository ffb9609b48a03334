"""Random requests of a history's clients: prompts, goals and sampling."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from helpers.fake_worker import ECHO, VOCAB
from sglang.ir.constraint import Constraint
from sglang.ir.sampling import SamplingParams
from sglang.srt.config.sections import PARK_POLICIES, POLICIES
from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.core.messages import EVERY, Distribution, Embed, Fill, Generate, Goal, Score
from sglang.srt.core.segments import Segment, Segments

PLACEHOLDER = 90
# Few letters, so that stops match often; halves of a character; a token without text.
_LETTERS = [b"a", b"b", b"c", b"\xc3\xa9", b"\xc3", b"\xa9"]
_spell = random.Random(1)
TEXT = [b"".join(_spell.choices(_LETTERS, k=_spell.choice([1, 1, 2, 3]))) for _ in range(VOCAB)]
TEXT[5], TEXT[-1] = b"", b"<eos>"
# Each matches texts of one length only: the leftmost match is the one that ends first.
PATTERNS = ["a[bc]a", "(ab|bc|ca)c", "b{3}", "é[ab]", "[ac]{4}b", "cé"]


@dataclass(frozen=True)
class Shape:
    """Size of a history: requests, tokens of prompts and of answers, requests at once."""

    requests: int
    prompt: int
    growth: int
    burst: int


@dataclass(frozen=True)
class Kind:
    """Theme of a history.

    Attributes:
        context: the model's context length. queue: requests that may wait.
        tight: memory for one or two requests; long: answers of hundreds of tokens.
        adapters, media, parts, stops: whether requests have them; ``parts``: texts side by side.
        faulty: passes and rows fail; blind: images now and then cannot be encoded.
        policy, overtakes, chunk, running: of the schedule.
        host: tokens of KV in host memory, 0 for none; movable: those that a pass may copy.
        parking: what becomes of the KV of contexts that wait for a tool.
        fills: share of the requests that are made Fills.
    """

    shape: Shape
    page_size: int
    pages: int
    context: int
    tight: bool
    long: bool
    queue: int
    adapters: bool
    media: bool
    blind: bool
    parts: bool
    stops: bool
    faulty: bool
    policy: str
    overtakes: int
    chunk: int
    running: int
    host: int
    movable: int
    parking: str
    fills: float = 0.0

    @staticmethod
    def chosen(r: random.Random) -> Kind:
        tight, long = r.random() < 0.65, r.random() < 0.012
        if long:
            tight = False
            shape = Shape(r.randint(2, 4), prompt=150, growth=300, burst=2)
        elif tight:  # many requests that grow long, in a memory that holds one or two of them
            shape = Shape(r.randint(6, 20), prompt=8, growth=24, burst=8)
        else:
            shape = Shape(r.randint(2, 12), prompt=14, growth=10, burst=4)
        page_size = r.choice([1, 1, 2, 4])
        longest = shape.prompt + shape.growth
        pages = r.randint(longest, (2 if tight else 3) * longest) // page_size + 1
        media = r.random() < 0.3
        return Kind(
            shape, page_size, pages,
            context=r.choice([4096, 4096, 4096, longest - r.randint(0, 4)]),
            tight=tight, long=long,
            queue=r.choice([*[100_000] * 6, 2, 4]),
            adapters=r.random() < 0.3, media=media, blind=media and r.random() < 0.4,
            parts=page_size == 1 and r.random() < 0.5,
            stops=r.random() < 0.5, faulty=r.random() < 0.2,
            policy=r.choice(POLICIES), overtakes=r.choice([0, 1, 3, 10]),
            chunk=r.choice([32, 100, -1] if long else [1, 3, 3, 8, 32, -1]),
            running=r.choice([4, 16] if tight else [1, 2, 4, 16]),
            host=r.choice([0, longest // 2, 3 * longest, 3 * longest, 20 * longest]),
            movable=r.choice([1, 4, 8, 64, 1 << 20]),
            parking=r.choice(["priced", *PARK_POLICIES]),
        )  # fmt: skip

    def narrow(self, r: random.Random) -> Kind:
        """The same with host memory, few tokens a pass to copy or compute, and many Fills."""
        longest = self.shape.prompt + self.shape.growth
        return replace(
            self, host=r.choice([3, 20]) * longest, movable=self.page_size * r.choice([1, 2, 4]),
            chunk=r.choice([1, 1, 3, 8]), fills=0.4,
        )  # fmt: skip

    @property
    def capacity(self) -> int:
        return self.pages * self.page_size

    @property
    def limit(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return min(self.capacity, self.context)


class Wishes:
    """Chooses at random, alike each time for one ``random``."""

    def __init__(self, r: random.Random, kind: Kind, draft: bool) -> None:
        self.random, self.kind = r, kind
        self._fills = random.Random(str(kind))
        self._speculation = ["auto", "off", "ngram", "ngram", *(["draft", "draft"] * draft)]
        length = kind.shape.prompt
        self._stems = [[r.randrange(VOCAB) for _ in range(length)] for _ in range(2)]
        if r.random() < 0.5:
            self._stems[0][0] = r.choice([ECHO, ECHO + 1])
        self._base = r.randint(1, 3)  # tokens before texts side by side
        self._texts = [[r.randrange(VOCAB) for _ in range(r.randint(1, 3))] for _ in range(3)]
        self._sizes = [r.randint(1, 4) for _ in range(4)]  # sizes of images

    def prompt(self) -> tuple[list[int], Segments, tuple[MediaSpan, ...]]:
        """Tokens; texts side by side among them; images."""
        r, shape = self.random, self.kind.shape
        tokens = list(r.choice(self._stems)[: r.randint(1, shape.prompt)])
        media: list[MediaSpan] = []
        if self.kind.media and r.random() < 0.6:
            tokens = tokens[: r.randint(1, max(len(tokens) // 2, 1))]
            for _ in range(r.choice([1, 1, 2])):
                content = r.randrange(4)
                size = self._sizes[content]
                key = bytes([content + 1]) * 16
                media.append(MediaSpan(len(tokens), size, key, "image", (1,), b"x"))
                tokens += [PLACEHOLDER] * size
        segments: list[Segment] = []
        if self.kind.parts and r.random() < 0.6:  # the same texts side by side, or one by one
            tokens = tokens if media else self._stems[0][: self._base]
            base, apart = len(tokens), r.random() < 0.7
            for text in self._texts[: r.randint(1, 3)]:
                segments += [Segment(len(tokens), base)] if apart else []
                tokens = tokens + text
            if apart and r.random() < 0.8:  # else the last text goes on by itself
                segments.append(Segment(len(tokens), len(tokens)))
        tokens += [r.randrange(VOCAB) for _ in range(r.randint(0, 4))]
        return tokens, tuple(segments), tuple(media)

    def goal(self, length: int, tail: int) -> Goal:
        """``tail``: the first token that may be scored."""
        if self.kind.fills and self._fills.random() < self.kind.fills:
            return Fill()
        r = self.random
        kind = r.random()
        probe = tuple(r.sample(range(VOCAB), 2)) if r.random() < 0.15 else ()
        start = r.choice([tail, r.randint(tail, length), r.randint(0, length)])
        if kind < 0.76:
            top = r.choice([-1, -1, -1, 0, 2])
            begin = start if top >= 0 and r.random() < 0.5 else -1
            return Generate(self.sampling(), top, begin, probe, r.choice([1, 1, 1, 3, 32]))
        if kind < 0.84:
            return Score(start, r.choice([0, 2]), probe)
        if kind < 0.94:
            return Fill() if kind < 0.89 else Distribution(r.choice([1, 3]), probe)
        return Embed(r.choice(["last", "mean", EVERY]))

    def sampling(self) -> SamplingParams:
        r = self.random
        shape = self.kind.shape
        calm = self.kind.long and r.random() < 0.7  # nothing ends it early
        most = r.randint(shape.growth // 2 if calm else 1, shape.growth)
        stops = self.kind.stops and not calm and r.random() < 0.7
        sizes = [r.randint(1, 4) for _ in range(r.choice([0, 1, 3]))]
        strings = ["".join(r.choices("abcé", k=size)) for size in sizes]
        return SamplingParams(
            max_new_tokens=most,
            min_new_tokens=r.choice([0, most, r.randint(0, most)]),
            temperature=r.choice([0.0, 1.0, 0.6]),
            top_k=r.choice([-1, -1, -1, 1, 5]),
            top_p=r.choice([1.0, 1.0, 1.0, 0.1]),
            min_p=r.choice([0.0, 0.0, 0.0, 0.9]),
            seed=r.randrange(1 << 40),
            speculation=r.choice(self._speculation),
            frequency_penalty=r.choice([*[0.0] * 4, 0.5]),
            presence_penalty=r.choice([*[0.0] * 6, -1.0]),
            repetition_penalty=r.choice([*[1.0] * 4, 1.5]),
            logit_bias=self._bias(),
            stop_token_ids=() if calm else tuple(r.sample(range(VOCAB), r.choice([0, 0, 6]))),
            stop=tuple(strings) if stops else (),
            stop_regex=(r.choice(PATTERNS),) if stops and r.random() < 0.5 else (),
            ignore_eos=calm or r.random() < 0.5,
            constraint=None if calm else self._constraint(),
        )

    def _bias(self) -> dict[int, float]:
        r = self.random
        if r.random() < 0.75:
            return {}
        return {r.randrange(VOCAB): r.choice([-100.0, -0.5, 2.0]) for _ in range(r.randint(1, 3))}

    def _constraint(self) -> Constraint | None:
        r = self.random
        if r.random() < 0.6:
            return None
        return Constraint("regex", "bad" if r.random() < 0.03 else str(r.randrange(1 << 30)))
