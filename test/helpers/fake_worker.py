"""A worker without a model: its KV is (token, position) a slot, and the next token is a hash of all
that the row reads through its page table, of its random number and of its penalties. A page lost,
shared wrongly, evicted while in use or read before it is written changes the text."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from itertools import accumulate, chain
from operator import mul

from srt.core.batch import NONE_ALLOWED, Batch, Drawn, Row, RowOutput, Sample, StepResult
from srt.core.matcher import GrammarError
from srt.core.sampling import SamplingParams
from srt.engine.info import EngineInfo

VOCAB = 97
EOS = 96
ECHO = 80  # texts that begin with a token from here on go round in circles


class Corrupt(BaseException):
    """The engine has broken its promise to the worker. Not an Exception, which the engine would
    take for a failed pass."""


# A polynomial hash: value = value * 31 + token + 7, from 17 on.
MODULUS, LONGEST = 1_000_003, 1 << 13
_POWERS = [pow(31, LONGEST - 1 - i, MODULUS) for i in range(LONGEST)]
_STARTS = list(accumulate(range(LONGEST), lambda value, _: (value * 31 + 7) % MODULUS, initial=17))


def next_token(tokens: list[int]) -> int:
    """The 'model': a function of the whole sequence; or of its last token, where it echoes."""
    if tokens and tokens[0] >= ECHO:
        return (tokens[-1] + 1) % 7
    count = len(tokens)
    total = sum(map(mul, tokens, _POWERS[LONGEST - count :]))
    return (_STARTS[count] + total) % MODULUS % VOCAB


def draw(
    tokens: list[int],
    params: SamplingParams,
    uniform: float,
    history: Iterable[int],
    prompt: Iterable[int],
    forbidden: Collection[int],
    mask: bytes | None = None,
) -> int:
    """The 'sampler': depends on everything a real one depends on. -1: nothing is allowed."""
    token = next_token(tokens) + (0 if params.greedy else int(uniform * VOCAB))
    token = (token + 3 * sum(history) + 5 * sum(prompt)) % VOCAB
    for _ in range(VOCAB):
        allowed = mask is None or mask[token >> 3] >> (token & 7) & 1
        if allowed and token not in forbidden:
            return token
        token = (token + 1) % VOCAB
    return -1


def logprob(tokens: list[int], token: int) -> float:
    """The 'log-probability' of ``token`` after ``tokens``."""
    return -((next_token(tokens) * 13 + token) % 89) / 10


def hidden_state(tokens: list[int]) -> list[float]:
    """The 'hidden state' of the last of ``tokens``: whole numbers, whose sums are exact."""
    value = next_token(tokens)
    return [float(value), float(value * len(tokens) % 7), 1.0]


def seen_as(key: bytes, index: int) -> int:
    """The 'hidden state' of a placeholder: what its KV is a function of."""
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
    """Computes batches over a dictionary of slots. ``fail_at`` and ``break_at`` name batch ids:
    the first raise, the second give their last row an error. ``blind``: keys of media that cannot
    be encoded; what is computed in their place is wrong."""

    def __init__(self, page_size: int, fail_at: set[int] | None = None,
                 break_at: set[int] | None = None) -> None:  # fmt: skip
        self.page_size = page_size
        self.kv: dict[int, tuple[int, int]] = {}
        self.fail_at = fail_at or set()
        self.break_at = break_at or set()
        self.blind: set[bytes] = set()
        self.passes = self.tokens = 0
        self.shared_in_pass = 0  # rows that read what another row of their own pass wrote
        self.followed = 0  # rows that went on from a token of the batch before
        self.drawn: list[int] = []  # by the rows of the last batch
        self.batches: list[list[tuple[int, int]]] = []

    def run(self, batch: Batch) -> StepResult:
        if batch.id in self.fail_at:
            raise RuntimeError("injected")
        self.passes += 1
        self.tokens += batch.num_tokens
        self.batches.append([(row.context, len(row.tokens)) for row in batch.rows])
        for row in batch.rows:
            if row.follows >= 0:
                self._follow(row)
        written: set[int] = set()
        for row in batch.rows:
            for i, token in enumerate(self._contents(row)):
                slot = self._slot(row, row.start + i)
                if slot in written:
                    raise Corrupt("two rows write one slot")
                written.add(slot)
                self.kv[slot] = (token, row.start + i)
        rows = [self._output(row, written) for row in batch.rows]
        self.drawn = [out.token for out in rows]
        if batch.id in self.break_at:
            rows[-1] = RowOutput(error="injected row error")
        return StepResult(batch.id, rows)

    def _follow(self, row: Row) -> None:
        """Put the token in that the row goes on from."""
        token = self.drawn[row.follows]
        row.tokens[0] = max(token, 0)  # what follows a draw that failed is dropped
        if row.sample is not None and row.sample.params.penalised:
            row.sample.history.append(token)
        self.followed += 1

    def _contents(self, row: Row) -> list[int]:
        found = contents(row)
        for piece in row.pieces:
            if piece.media.key in self.blind:
                found[piece.at : piece.at + piece.count] = [7] * piece.count
        return found

    def _slot(self, row: Row, position: int) -> int:
        page, offset = divmod(position, self.page_size)
        return row.pages[page] * self.page_size + offset

    def _output(self, row: Row, written: set[int]) -> RowOutput:
        end = row.start + len(row.tokens)
        size = self.page_size
        pages = row.pages[: -(-end // size)]
        slots = [page * size + place for page in pages for place in range(size)][:end]
        held = [self.kv.get(slot, (-1, -1)) for slot in slots]
        seen = [token for token, _ in held]
        if [where for _, where in held] != list(range(end)):
            raise Corrupt("a slot has another position's KV, or none")
        if row.start and slots[row.start - 1] in written:
            self.shared_in_pass += 1
        if seen[row.start :] != self._contents(row):
            raise Corrupt("a row's own tokens were overwritten")
        out = RowOutput()
        out.unseen = [p.media.key for p in row.pieces if p.media.key in self.blind]
        out.error = "the image could not be encoded" if out.unseen else ""
        if row.score is not None:
            for i, token in enumerate(row.score.targets):
                out.scores.append(logprob(seen[: row.start + row.score.at + i + 1], token))
                out.score_tops.append([(next_token(seen[: row.start + row.score.at + i + 1]), 0.0)])
                out.score_probes.append([0.0] * len(row.score.probe))
        for i, check in enumerate(row.checks):
            out.checks.append(self._draw(seen[: end - len(row.checks) + i], check))
        if row.sample is not None:
            drawn = self._draw(seen, row.sample)
            out.token, out.error = drawn.token, out.error or drawn.error
            out.logprob, out.top = drawn.logprob, drawn.top
        if row.tip_top:
            out.top = [(next_token(seen), -0.5)]
        if row.pool >= 0:
            states = [hidden_state(seen[: i + 1]) for i in range(row.start + row.pool, end)]
            sums = chain(*states) if row.every else map(sum, zip(*states))
            out.pooled = array("d", sums)
        return out

    @staticmethod
    def _draw(seen: list[int], want: Sample) -> Drawn:
        try:
            mask = want.mask() if callable(want.mask) else want.mask
        except GrammarError as error:
            return Drawn(error=f"{NONE_ALLOWED}: {error}")
        token = draw(
            seen, want.params, want.uniform, want.history, want.prompt, want.forbidden, mask
        )
        if token < 0:
            return Drawn(error=NONE_ALLOWED)
        out = Drawn(token)
        if want.top >= 0:
            out.logprob, out.top = logprob(seen, token), [(next_token(seen), -0.5)] * want.top
        return out


class Guesser(FakeWorker):
    """A 'draft model': it reads as well and draws as the model does, but one in ``wrong``."""

    def __init__(self, wrong: int = 1 << 30, fail_at: set[int] | None = None) -> None:
        super().__init__(1, fail_at)
        self.wrong = wrong

    def _output(self, row: Row, written: set[int]) -> RowOutput:
        out = super()._output(row, written)
        end = row.start + len(row.tokens)
        if row.sample is not None and not out.error and end % self.wrong == 0:
            out.token = (out.token + 1) % VOCAB
        return out


def fake_info(
    capacity: int, page_size: int, max_running: int = 256, context: int = 4096, draft: str = ""
) -> EngineInfo:
    """An EngineInfo for the fake worker."""
    return EngineInfo(
        model_path="fake", architecture="Fake", dtype="none", device="none", vocab_size=VOCAB,
        context_length=context, capacity=capacity, page_size=page_size, eos=(EOS,),
        max_running_requests=max_running, max_queued_requests=100_000,
        draft_model=draft,
    )  # fmt: skip


TOKEN_BYTES = [bytes([33 + i % 90]) for i in range(VOCAB - 1)] + [b"<eos>"]
