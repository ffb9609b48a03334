"""A worker without a model, whose output depends on everything that a real one's depends on.

The *state* of a token, which is its KV, is a hash of the state before it in its view, of what the
token is shown as and of its position. An output is a hash of all states in the view of its
position. What a token is shown as depends on its image, its adapter and its cache salt. So a page
that is lost, shared wrongly, evicted while in use or read before it is written changes the text.

``Reader`` computes the same from the definition: a token at a time, without pages or a cache.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, chain
from math import ceil
from operator import mul
from typing import Any

import msgspec
from helpers.tables import Corrupt, Tables
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import (
    NONE_ALLOWED,
    Batch,
    Drawn,
    PageMoves,
    Row,
    RowOutput,
    Sample,
    StepResult,
)
from sglang.srt.core.disk_jobs import Disk
from sglang.srt.core.ints import ints
from sglang.srt.core.matcher import POSTPONED
from sglang.srt.core.segments import Segments
from sglang.srt.core.workers import NO_MASKS, Finish, Mask, Masks
from sglang.srt.engine.info import EngineInfo

VOCAB = 97
EOS = 96
ECHO = 80  # a text that begins with it goes round in circles; with a later token, mostly
ADAPTED = 1 << 18  # times the adapter's number: added to what a token is shown as
SALTED = 1 << 19  # added under a cache salt


# A polynomial hash: value = value * 31 + item, from START on.
MODULUS, LONGEST, START = 1_000_003, 1 << 13, 17
_POWERS = [pow(31, LONGEST - 1 - i, MODULUS) for i in range(LONGEST)]
_STARTS = list(accumulate(range(LONGEST), lambda value, _: value * 31 % MODULUS, initial=START))


def digest(items: Sequence[int]) -> int:
    """A hash of the items, their order and their number."""
    count = len(items)
    return (_STARTS[count] + sum(map(mul, items, _POWERS[LONGEST - count :]))) % MODULUS


def state_of(before: int, shown: int, place: int) -> int:
    """The state of a token behind one with state ``before``."""
    return (before * 31 + shown + 101 * place + 7) % MODULUS


def reading_of(value: int, first: int, last: int) -> int:
    """The output at a position whose view has the digest ``value`` and these ends. Modulo VOCAB it
    is the likeliest token: a function of ``last`` alone, where the text goes round in circles."""
    if first == ECHO or (ECHO < first < VOCAB and value % 8):
        return value - value % VOCAB + (last + 1) % 7
    return value


class Reader:
    """The model by its definition.

    Attributes:
        readings: the output at each position.
    """

    def __init__(self, shown: Iterable[int] = (), segments: Segments = ()) -> None:
        self.readings: list[int] = []
        self._states: list[int] = []
        self._segments = list(segments)
        self._value = self._before = START
        self._place, self._begin, self._first = 0, -1, -1  # -1: there is no token yet
        for token in shown:
            self.add(token)

    def add(self, shown: int) -> None:
        """Read the next token."""
        if self._segments and self._segments[0].start == len(self._states):
            sees = self._segments.pop(0).sees
            self._place = sees
            self._before = self._states[sees - 1] if sees else START
            self._value = digest(self._states[:sees])
            self._first = self._begin if sees else -1
        self._first = shown if self._first < 0 else self._first
        self._begin = shown if self._begin < 0 else self._begin
        self._before = state_of(self._before, shown, self._place)
        self._place += 1
        self._states.append(self._before)
        self._value = (self._value * 31 + self._before) % MODULUS
        self.readings.append(reading_of(self._value, self._first, shown))


def next_token(shown: Sequence[int]) -> int:
    """The likeliest token behind a plain context."""
    return likeliest(Reader(shown).readings[-1], 1)[0][0]


def logprob(shown: Sequence[int], token: int) -> float:
    """The 'log-probability' of ``token`` behind a plain context."""
    return logprob_at(Reader(shown).readings[-1], token)


def hidden_state(shown: Sequence[int]) -> list[float]:
    """The 'hidden state' of the last token of a plain context."""
    return hidden_at(Reader(shown).readings[-1])


def logprob_at(reading: int, token: int) -> float:
    return -((reading * 13 + token) % 89) / 10


def hidden_at(reading: int) -> list[float]:
    """Values that are whole numbers: their sums are exact."""
    return [float(reading % VOCAB), float(reading % 7), 1.0]


def likeliest(reading: int, count: int) -> list[tuple[int, float]]:
    """The ``count`` likeliest tokens with their log-probabilities."""
    return [((reading + 17 * i) % VOCAB, -0.5 - i) for i in range(count)]


def draw(
    reading: int,
    params: SamplingParams,
    uniform: float,
    history: Sequence[int] = (),
    prompt: Sequence[int] = (),
    forbidden: Collection[int] = (),
    mask: bytes | None = None,
) -> int:
    """The 'sampler': depends on everything a real one depends on. -1: nothing is allowed."""
    first, rank = reading, 0
    if params.penalised:
        weight = 3 + round(10 * params.frequency_penalty) + round(100 * params.presence_penalty)
        first += weight * digest(history)
        if params.repetition_penalty != 1.0:
            first += round(10 * params.repetition_penalty) * (digest(prompt) + digest(history))
    if params.logit_bias:
        first += sum((token + 1) * round(10 * bias) for token, bias in params.logit_bias.items())
    if not params.greedy:
        count = min(
            params.top_k if params.top_k > 0 else VOCAB,
            ceil(params.top_p * VOCAB),
            max(int((1.0 - params.min_p) * VOCAB), 1),
        )
        rank = int(uniform ** (1 / params.temperature) * count)
    unlikely = -1
    for further in range(VOCAB):
        token = (first + 17 * (rank + further)) % VOCAB
        allowed = mask is None or mask[token >> 3] >> (token & 7) & 1
        if allowed and token not in forbidden:
            if params.logit_bias.get(token, 0.0) > -50.0:
                return token
            unlikely = token if unlikely < 0 else unlikely
    return unlikely


def seen_as(key: bytes, index: int) -> int:
    """The value that stands for a placeholder of an image or video."""
    return 1000 + key[0] * 1000 + index


def contents(row: Row) -> list[int]:
    """The row's tokens, what is seen in place of placeholders."""
    found = list(row.tokens)
    for piece in row.pieces:
        states = range(piece.skip, piece.skip + piece.count)
        assert states.stop <= piece.media.count, "more than the tower makes"
        found[piece.at : piece.at + piece.count] = [seen_as(piece.media.key, i) for i in states]
    assert len(found) == len(row.tokens), "a piece that leaves its row"
    return found


class FakeWorker:
    """Computes batches over a dictionary of slots.

    Attributes:
        fail_at, break_at: batch ids: the first raise, the second give their last row an error.
        blind: keys of media that cannot be encoded; what is computed in their place is wrong.
        salted: contexts under a cache salt.
        loaded: adapters by number; gate: while it is closed, no adapter is loaded.
        disk: below ``host`` (``helpers/fake_disk``).
    """

    def __init__(self, page_size: int, fail_at: set[int] | None = None,
                 break_at: set[int] | None = None) -> None:  # fmt: skip
        self.page_size = page_size
        self.tables = Tables(page_size)
        self.states: dict[int, int] = {}  # by slot
        self.shown: dict[int, int] = {}
        self.fail_at = fail_at or set()
        self.break_at = break_at or set()
        self.blind: set[bytes] = set()
        self.host: dict[int, list[tuple[int, int]]] = {}  # states and what is shown, by host page
        self.disk: Disk | None = None
        self.salted: set[int] = set()
        self.loaded: dict[int, str] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.passes = self.tokens = 0
        self.shared_in_pass = 0  # rows that read what another row of their own pass wrote
        self.followed = 0  # rows that went on from a token of the batch before
        self.penalised = 0  # of these, rows whose token was added to a penalty history
        self.adapters = 0  # most distinct adapters of a pass
        self.gone = 0  # rows whose adapter was unloaded after they were planned
        self.drawn: list[int] = []  # by the rows of the last batch
        self.batches: list[list[tuple[int, int]]] = []
        self.moves: list[PageMoves | None] = []

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        self.gate.wait()
        if path == "bad":
            raise ValueError("no adapter in PEFT's layout")
        assert number not in self.loaded
        self.loaded[number] = path
        return {"rank": 4, "bytes": 100}

    def unload_adapter(self, number: int) -> None:
        del self.loaded[number]

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        result = self.run(batch, masks)
        return lambda: result

    def run(self, batch: Batch, masks: Masks = NO_MASKS) -> StepResult:
        if batch.id in self.fail_at:
            raise RuntimeError("injected")
        self.passes += 1
        self.tokens += batch.num_tokens
        self.moves.append(batch.moves)
        if batch.moves is not None:
            self._move(batch.moves)
        self.batches.append([(row.context, len(row.tokens)) for row in batch.rows])
        self.adapters = max(self.adapters, len({row.adapter for row in batch.rows} - {0}))
        written: set[int] = set()
        computed = [
            self._follow(row) if row.follows >= 0 else row for row in self.tables.rows(batch)
        ]
        states = [self._write(row, written) for row in computed]
        made = masks.make()
        rows = [self._output(row, own, made) for row, own in zip(computed, states)]
        self.drawn = [out.token for out in rows]
        if batch.id in self.break_at:
            rows[-1] = RowOutput(error="injected row error", unseen=rows[-1].unseen)
        context = sum(row.start + len(row.tokens) for row in batch.rows)
        seconds = 2e-4 * max(batch.num_tokens, 5) + 1e-5 * context
        return StepResult(batch.id, rows, stages=(seconds, 1e-3))

    def _move(self, moves: PageMoves) -> None:
        """Copy pages to host memory, then from it."""
        size = self.page_size
        for pages in (moves.stored, moves.loaded):
            if len(set(pages)) < len(pages):
                raise Corrupt("two pages are copied into one")
        for page, into in zip(moves.stores, moves.stored, strict=True):
            slots = range(page * size, (page + 1) * size)
            if any(slot not in self.states for slot in slots):
                raise Corrupt("a page without KV is stored")
            self.host[into] = [(self.states[slot], self.shown[slot]) for slot in slots]
        for page, into in zip(moves.loads, moves.loaded, strict=True):
            if page not in self.host:
                raise Corrupt("a host page without KV is loaded")
            for slot, (state, shown) in enumerate(self.host[page], into * size):
                self.states[slot], self.shown[slot] = state, shown

    def _follow(self, row: Row) -> Row:
        """A copy of the row with the token that it follows, also in a penalty's history."""
        token, sample = self.drawn[row.follows], row.sample
        tokens = ints([max(token, 0)]) + row.tokens[1:]  # tokens after a failed one are dropped
        if sample is not None and sample.params.penalised:
            sample = sample.after(token)
            self.penalised += 1
        self.followed += 1
        return msgspec.structs.replace(row, tokens=tokens, sample=sample)

    def _contents(self, row: Row) -> list[int]:
        found = contents(row)
        for piece in row.pieces:
            if piece.media.key in self.blind:
                found[piece.at : piece.at + piece.count] = [7] * piece.count
        more = ADAPTED * row.adapter + SALTED * (row.context in self.salted)
        return [token + more for token in found] if more else found

    def _slots(self, row: Row, start: int, end: int) -> list[int]:
        size = self.page_size
        if size == 1:
            return list(row.pages[start:end])
        return [row.pages[place // size] * size + place % size for place in range(start, end)]

    def _write(self, row: Row, written: set[int]) -> list[int]:
        """Write the states of the row's tokens, and return them."""
        end = row.start + len(row.tokens)
        before, own = START, []
        if row.start:
            (slot,) = self._slots(row, row.start - 1, row.start)
            self.shared_in_pass += slot in written
            if slot not in self.states:
                raise Corrupt("a row goes on from a slot that has no KV")
            before = self.states[slot]
        slots = self._slots(row, row.start, end)
        if not written.isdisjoint(slots):
            raise Corrupt("two rows write one slot")
        written.update(slots)
        for place, (slot, token) in enumerate(zip(slots, self._contents(row)), row.start):
            before = state_of(before, token, place)
            own.append(before)
            self.states[slot], self.shown[slot] = before, token
        return own

    def _output(self, row: Row, own: list[int], masks: Sequence[Mask]) -> RowOutput:
        out = RowOutput()
        out.unseen = [p.media.key for p in row.pieces if p.media.key in self.blind]
        out.error = "the image could not be encoded" if out.unseen else ""
        if row.adapter and row.adapter not in self.loaded:  # right where no request waits for it
            out.error = f"adapter {row.adapter} is not loaded"
            self.gone += 1
        count, score = len(row.tokens), row.score
        drawing = row.sample is not None or row.tip_top > 0 or bool(row.probe)
        wanted = [count - 1 - len(row.checks)] if drawing else []
        wanted += [score.at] if score is not None else []
        wanted += [row.pool] if row.pool >= 0 else []
        if not wanted:
            return out
        begin = min(wanted)
        readings = dict(enumerate(self._readings(row, own, begin), begin))
        if score is not None:
            for at, token in enumerate(score.targets, score.at):
                out.scores.append(logprob_at(readings[at], token))
                out.score_tops.append(likeliest(readings[at], score.top))
                out.score_probes.append([logprob_at(readings[at], t) for t in score.probe])
        for at, check in enumerate(row.checks, count - 1 - len(row.checks)):
            out.checks.append(self._draw(readings[at], check, row.probe, masks))
        if row.sample is not None:
            drawn = self._draw(readings[count - 1], row.sample, row.probe, masks)
            out.token, out.postponed = drawn.token, drawn.postponed and not out.error
            out.error = out.error or drawn.error
            out.logprob, out.top, out.probe = drawn.logprob, drawn.top, drawn.probe
        elif drawing:
            out.top = likeliest(readings[count - 1], row.tip_top)
            out.probe = [logprob_at(readings[count - 1], token) for token in row.probe]
        if row.pool >= 0:
            states = [hidden_at(readings[i]) for i in range(row.pool, count)]
            sums = chain(*states) if row.every else map(sum, zip(*states))
            out.pooled = array("d", sums)
        return out

    def _readings(self, row: Row, own: list[int], begin: int) -> list[int]:
        """The outputs at the row's tokens from index ``begin`` on."""
        slots = self._slots(row, 0, row.start + len(row.tokens))
        try:
            view = [self.states[slot] for slot in slots]
        except KeyError:
            raise Corrupt("a row reads a slot that has no KV") from None
        if view[row.start :] != own:
            raise Corrupt("a row's own tokens were overwritten")
        first, value = self.shown[slots[0]], digest(view[: row.start + begin])
        readings = []
        for slot, state in zip(slots[row.start + begin :], own[begin:]):
            value = (value * 31 + state) % MODULUS
            readings.append(reading_of(value, first, self.shown[slot]))
        return readings

    @staticmethod
    def _draw(reading: int, want: Sample, probe: Sequence[int], masks: Sequence[Mask]) -> Drawn:
        mask = want.mask
        if isinstance(mask, int):
            if error := masks[mask].error:
                postponed = error == POSTPONED
                text = error if postponed else f"{NONE_ALLOWED}: {error}"
                return Drawn(error=text, postponed=postponed)
            mask = masks[mask].words
        token = draw(
            reading, want.params, want.uniform, want.history, want.prompt, want.forbidden, mask
        )
        if token < 0:
            return Drawn(error=NONE_ALLOWED)
        out = Drawn(token, probe=[logprob_at(reading, token) for token in probe])
        if want.top >= 0:
            out.logprob, out.top = logprob_at(reading, token), likeliest(reading, want.top)
        return out


class Guesser(FakeWorker):
    """A 'draft model': it reads as the model does, and samples the same but for one in
    ``wrong``."""

    def __init__(self, wrong: int = 1 << 30, fail_at: set[int] | None = None) -> None:
        super().__init__(1, fail_at)
        self.wrong = wrong

    def _output(self, row: Row, own: list[int], masks: Sequence[Mask]) -> RowOutput:
        out = super()._output(row, own, masks)
        end = row.start + len(row.tokens)
        if row.sample is not None and not out.error and end % self.wrong == 0:
            out.token = (out.token + 1) % VOCAB
        return out


def fake_info(
    capacity: int, page_size: int, max_running: int = 256, context: int = 4096, draft: str = "",
    **facts: Any,
) -> EngineInfo:  # fmt: skip
    """An EngineInfo for the fake worker. ``facts``: more of what it says."""
    settings: dict[str, Any] = {"max_queued_requests": 100_000, **facts}
    return EngineInfo(
        model_path="fake", architecture="Fake", dtype="none", device="none", vocab_size=VOCAB,
        context_length=context, capacity=capacity, page_size=page_size, eos=(EOS,),
        max_running_requests=max_running, draft_model=draft, **settings,
    )  # fmt: skip


TOKEN_BYTES = [bytes([33 + i % 90]) for i in range(VOCAB - 1)] + [b"<eos>"]
