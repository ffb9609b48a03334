"""Reference of the engine over the fake worker, in the plainest code: one token after another,
one request alone, no cache, no batch, and texts searched anew at each token."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from helpers.fake_worker import (
    ADAPTED,
    EOS,
    SALTED,
    TOKEN_BYTES,
    Reader,
    draw,
    hidden_at,
    likeliest,
    logprob_at,
    seen_as,
)
from helpers.toy_grammar import allowed, bits
from sglang.ir.constraint import Constraint
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.media_marks import Medias
from sglang.srt.core.messages import EVERY, Distribution, Embed, Generate, Goal, Score, TopPairs
from sglang.srt.core.segments import Segments
from sglang.srt.engine.rows import uniform


@dataclass
class Known:
    """A context as its client knows it.

    Attributes:
        shown: what the model sees in place of each token.
        adapter: its number, -1 for a name under which nothing was loaded.
        keys: of its images.
    """

    tokens: list[int]
    shown: list[int] = field(default_factory=list)
    segments: Segments = ()
    salt: str = ""
    adapter: int = 0
    keys: frozenset[bytes] = frozenset()

    @classmethod
    def opened(
        cls, tokens: Sequence[int], segments: Segments = (), media: Medias = (), salt: str = "",
        adapter: int = 0,
    ) -> Known:  # fmt: skip
        known = cls([], [], segments, salt, adapter, frozenset(m.key for m in media))
        known.append(tokens)
        for medium in media:
            for i in range(medium.count):
                known.shown[medium.start + i] = known.mark(seen_as(medium.key, i))
        return known

    def mark(self, token: int) -> int:
        return token + ADAPTED * self.adapter + SALTED * bool(self.salt)

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.shown += map(self.mark, tokens)

    def cut(self, length: int) -> None:
        del self.tokens[length:], self.shown[length:]
        self.segments = tuple(s for s in self.segments if s.start <= length)

    def copy(self) -> Known:
        return Known(
            self.tokens[:], self.shown[:], self.segments, self.salt, self.adapter, self.keys
        )

    @property
    def tail(self) -> int:
        """Index from which on tokens see all that their segment may."""
        return self.segments[-1].start if self.segments else 0

    def reader(self) -> Reader:
        return Reader(self.shown, self.segments)


@dataclass
class Text:
    """Required end of a generation.

    Attributes:
        ends: (matched, cut) of the stops that end at the same byte: any of them may be named.
        readings: the model's output before each token of the answer.
    """

    tokens: list[int]
    reason: str = "length"
    ends: list[tuple[str | int | None, int]] = field(default_factory=lambda: [(None, -1)])
    readings: list[int] = field(default_factory=list)


def expected(
    prompt: Known | list[int], sampling: SamplingParams, table: Sequence[bytes] = TOKEN_BYTES,
    since: int = -1, generated: int = 0,
) -> Text:  # fmt: skip
    """The text of a generation on its own. ``table``: the bytes of every token; ``since``: where
    the generation began, if not behind the prompt; ``generated``: number of the prompt's last
    tokens that are its text already."""
    known = prompt if isinstance(prompt, Known) else Known.opened(prompt)
    reader, out = known.reader(), Text([])
    text = b"".join(table[token] for token in known.tokens[len(known.tokens) - generated :])
    eos = set() if sampling.ignore_eos else {EOS}
    ends = {*sampling.stop_token_ids} | eos
    grammar = int(sampling.constraint.text) if sampling.constraint else None
    begin = len(known.tokens) if since < 0 else since
    before, earlier = known.tokens[:begin], known.tokens[begin:]
    while generated + len(out.tokens) < sampling.max_new_tokens:
        so_far = earlier + out.tokens
        ids = None if grammar is None else allowed(grammar, tuple(so_far))
        if ids == frozenset({EOS}):
            out.reason = "stop"
            break
        barred = ends if len(so_far) < sampling.min_new_tokens else set()
        if grammar is not None and sampling.ignore_eos:
            barred = barred | {EOS}
        reading = reader.readings[-1]
        token = draw(
            reading,
            sampling,
            uniform(sampling.seed or 0, len(so_far)),
            so_far if sampling.penalised else (),
            before if sampling.repetition_penalty != 1.0 else (),
            barred,
            None if ids is None else bits(ids),
        )
        if token < 0:
            out.reason = "error"
            break
        out.tokens.append(token)
        out.readings.append(reading)
        reader.add(known.mark(token))
        length, text = len(text), text + table[token]
        if token in ends:
            out.reason, out.ends = "stop", [(token, length)]
            break
        if found := stops(text, sampling):
            out.reason, out.ends = "stop", found
            break
        if grammar is not None and allowed(grammar, (*so_far, token)) == {EOS}:
            out.reason = "stop"
            break
    return out


def stops(text: bytes, sampling: SamplingParams) -> list[tuple[str | int | None, int]]:
    """The stops in ``text`` that end first, the longest string alone: (matched, cut)."""
    found = [(text.index(stop.encode()), stop) for stop in sampling.stop if stop.encode() in text]
    ends = [(at + len(stop.encode()), at, stop) for at, stop in found]
    for pattern in sampling.stop_regex:
        if match := re.search(pattern.encode(), text):
            ends.append((match.end(), match.start(), match[0].decode()))
    if not ends:
        return []
    first = min(end for end, _, _ in ends)
    strings = [(at, stop) for at, stop in found if at + len(stop.encode()) == first]
    longest = [min(strings)] if strings else []
    patterns = [(at, stop) for end, at, stop in ends if end == first and (at, stop) not in found]
    return [(stop, at) for at, stop in longest + patterns]


def scores(known: Known, start: int) -> list[int | None]:
    """The reading that scores each token of the context from ``start`` on."""
    readings, tail = known.reader().readings, known.tail
    return [None if i == tail else readings[i - 1] for i in range(start, len(known.tokens))]


def score_start(goal: Goal) -> int:
    """The first token to be scored, -1 for none."""
    if isinstance(goal, Score):
        return goal.start
    return goal.score_from if isinstance(goal, Generate) else -1


def logprobs(readings: Sequence[int | None], tokens: Sequence[int]) -> list[float | None]:
    return [None if r is None else logprob_at(r, token) for r, token in zip(readings, tokens)]


def tops(readings: Sequence[int | None], count: int) -> list[TopPairs | None]:
    return [None if r is None else likeliest(r, count) for r in readings] if count > 0 else []


def probes(readings: Sequence[int | None], ids: Sequence[int]) -> list[list[float] | None]:
    return [None if r is None else [logprob_at(r, t) for t in ids] for r in readings] if ids else []


def embedding(known: Known, pooling: str) -> bytes:
    states = [hidden_at(reading) for reading in known.reader().readings]
    if pooling == EVERY:
        return array("f", [value for state in states for value in state]).tobytes()
    states = states if pooling == "mean" else states[-1:]
    return array("f", [sum(column) / len(states) for column in zip(*states)]).tobytes()


def refused(known: Known, goal: Goal, limit: int) -> bool:
    """Whether the engine must call the request invalid."""
    growth = goal.sampling.max_new_tokens - goal.generated if isinstance(goal, Generate) else 0
    constraint = goal.sampling.constraint if isinstance(goal, Generate) else None
    since = goal.since if isinstance(goal, Generate) else -1
    return (
        known.adapter < 0
        or len(known.tokens) + growth > limit
        or 0 <= score_start(goal) < known.tail
        or (isinstance(goal, Embed) and goal.pooling != "last" and bool(known.segments))
        or (constraint is not None and constraint.text == "bad")
        or since > len(known.tokens)
        or (constraint is not None and since >= 0 and not follows(constraint, known.tokens[since:]))
    )


def follows(constraint: Constraint, tokens: Sequence[int]) -> bool:
    """Whether the toy grammar allows the tokens."""
    grammar = int(constraint.text)
    steps = [(tuple(tokens[:index]), token) for index, token in enumerate(tokens)]
    return all(token != EOS and token in allowed(grammar, before) for before, token in steps)


def tip(known: Known, goal: Distribution) -> tuple[TopPairs, list[float]]:
    """``top`` and ``probe`` of a distribution."""
    reading = known.reader().readings[-1]
    return likeliest(reading, max(goal.top, 1)), [logprob_at(reading, t) for t in goal.probe]
