"""A worker without a model: its KV is (token, position) a slot, and the next token is a hash of all
that the row reads through its page table. A page lost, shared wrongly, evicted while in use or read
before it is written changes the text."""

from __future__ import annotations

from srt.core.batch import Batch, Row, RowOutput, StepResult
from srt.engine.info import EngineInfo

VOCAB = 97
EOS = 96


def next_token(tokens: list[int]) -> int:
    """The 'model': a function of the whole sequence."""
    value = 17
    for token in tokens:
        value = (value * 31 + token + 7) % 1_000_003
    return value % VOCAB


def logprob(tokens: list[int], token: int) -> float:
    """The 'log-probability' of ``token`` after ``tokens``."""
    return -((next_token(tokens) * 13 + token) % 89) / 10


class FakeWorker:
    """Executor over a dictionary of slots. ``fail_at`` and ``break_at`` name batch ids: the first
    raise, the second give their last row an error."""

    def __init__(self, page_size: int, fail_at: set[int] | None = None,
                 break_at: set[int] | None = None) -> None:  # fmt: skip
        self.page_size = page_size
        self.kv: dict[int, tuple[int, int]] = {}
        self.fail_at = fail_at or set()
        self.break_at = break_at or set()
        self.passes = self.tokens = 0
        self.batches: list[list[tuple[int, int]]] = []

    def run(self, batch: Batch) -> StepResult:
        if batch.id in self.fail_at:
            raise RuntimeError("injected")
        self.passes += 1
        self.tokens += batch.num_tokens
        self.batches.append([(row.context, len(row.tokens)) for row in batch.rows])
        written: set[int] = set()
        for row in batch.rows:
            for i, token in enumerate(row.tokens):
                slot = self._slot(row, row.start + i)
                assert slot not in written, "two rows write one slot"
                written.add(slot)
                self.kv[slot] = (token, row.start + i)
        rows = [self._output(row) for row in batch.rows]
        if batch.id in self.break_at:
            rows[-1] = RowOutput(error="injected row error")
        return StepResult(batch.id, rows)

    def _slot(self, row: Row, position: int) -> int:
        page, offset = divmod(position, self.page_size)
        return row.pages[page] * self.page_size + offset

    def _output(self, row: Row) -> RowOutput:
        end = row.start + len(row.tokens)
        seen = []
        for position in range(end):
            token, where = self.kv[self._slot(row, position)]
            assert where == position, "a slot holds another position's KV"
            seen.append(token)
        assert seen[row.start :] == list(row.tokens), "a row's own tokens were overwritten"
        out = RowOutput()
        if row.score is not None:
            for i, token in enumerate(row.score.targets):
                out.scores.append(logprob(seen[: row.start + row.score.at + i + 1], token))
                out.score_tops.append([(next_token(seen[: row.start + row.score.at + i + 1]), 0.0)])
                out.score_probes.append([0.0] * len(row.score.probe))
        if row.sample is not None:
            out.token = next_token(seen)
            while out.token in row.sample.forbidden:
                out.token = (out.token + 1) % VOCAB
        if row.tip_top:
            out.top = [(next_token(seen), -0.5)]
        return out


def fake_info(
    capacity: int, page_size: int, max_running: int = 256, context: int = 4096
) -> EngineInfo:
    """An EngineInfo for the fake worker."""
    return EngineInfo(
        model_path="fake", architecture="Fake", dtype="none", device="none", vocab_size=VOCAB,
        context_length=context, capacity=capacity, page_size=page_size, eos=(EOS,),
        max_running_requests=max_running, max_queued_requests=100_000,
    )  # fmt: skip


TOKEN_BYTES = [bytes([33 + i % 90]) for i in range(VOCAB - 1)] + [b"<eos>"]
