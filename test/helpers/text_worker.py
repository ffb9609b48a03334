"""A worker without a model over a real vocabulary, and an engine on a thread around it: HTTP and
programs are tested against the real scheduler and memory in milliseconds a request."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

from helpers.fake_worker import contents
from helpers.tables import Tables
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, Row, RowOutput, StepResult
from sglang.srt.core.workers import NO_MASKS, Finish, Masks
from sglang.srt.engine.executor import Threaded
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.local import LocalEngine
from sglang.srt.tokenizer import Tokenizer


def drawn(tokens: Sequence[int], vocab: int, seed: int = 0) -> int:
    """The 'model': a token that depends on the last sixteen and on how many there are."""
    value = 17 + seed
    for token in tokens[-16:]:
        value = (value * 31 + token + 7) % 1_000_003
    return (value + len(tokens)) % vocab


def logprob_of(tokens: Sequence[int], token: int, vocab: int) -> float:
    """The 'log-probability' of ``token`` after ``tokens``."""
    return -((drawn(tokens, vocab) * 13 + token) % 89) / 10


def hidden_state(tokens: Sequence[int], vocab: int) -> list[float]:
    """The 'hidden state' of the last of ``tokens``."""
    value = drawn(tokens, vocab)
    return [float(value), float(value * len(tokens) % 7), 1.0, -2.0]


class TextWorker:
    """Computes batches, each in ``seconds``; its KV is a dictionary of token ids by slot.

    A row reads its context through its page table alone, as a real one does.
    """

    disk = None

    def __init__(self, vocab: int, page_size: int = 1, seconds: float = 0.0) -> None:
        self.vocab, self.page_size, self.seconds = vocab, page_size, seconds
        self.tables = Tables(page_size)
        self.kv: dict[int, int] = {}
        self.drawn: list[int] = []  # by the rows of the last batch

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        result = self.run(batch)
        return lambda: result

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        raise ValueError("this worker takes no adapters")

    def unload_adapter(self, number: int) -> None:
        pass

    def run(self, batch: Batch) -> StepResult:
        time.sleep(self.seconds)
        computed = self.tables.rows(batch)
        for row in computed:
            tokens = contents(row)
            if row.follows >= 0:
                tokens[0] = self.drawn[row.follows]
            for i, token in enumerate(tokens):
                self.kv[self._slot(row, row.start + i)] = token
        rows = [self._output(row) for row in computed]
        self.drawn = [out.token for out in rows]
        return StepResult(batch.id, rows)

    def _slot(self, row: Row, position: int) -> int:
        page, offset = divmod(position, self.page_size)
        return row.pages[page] * self.page_size + offset

    def _output(self, row: Row) -> RowOutput:
        end = row.start + len(row.tokens)
        seen = [self.kv[self._slot(row, position)] for position in range(end)]
        out = RowOutput()
        if row.score is not None:
            at = row.start + row.score.at
            for i, token in enumerate(row.score.targets):
                before = seen[: at + i + 1]
                out.scores.append(logprob_of(before, token, self.vocab))
                out.score_tops.append(self._top(before, row.score.top))
                out.score_probes.append(self._probe(before, row.score.probe))
        if row.sample is not None:
            params = row.sample.params
            seed = 0 if params.greedy else int(row.sample.uniform * 1000)
            out.token = drawn(seen, self.vocab, seed)
            while out.token in row.sample.forbidden:
                out.token = (out.token + 1) % self.vocab
            out.logprob = logprob_of(seen, out.token, self.vocab)
            out.top = self._top(seen, max(row.sample.top, 0))
            out.probe = self._probe(seen, row.probe)
        elif row.tip_top or row.probe:
            out.top = self._top(seen, row.tip_top)
            out.probe = self._probe(seen, row.probe)
        if row.pool >= 0:
            places = range(row.start + row.pool, end)
            states = [hidden_state(seen[: i + 1], self.vocab) for i in places]
            sums = chain(*states) if row.every else map(sum, zip(*states))
            out.pooled = array("d", sums)
        return out

    def _top(self, seen: Sequence[int], count: int) -> list[tuple[int, float]]:
        first = drawn(seen, self.vocab)
        return [((first + i) % self.vocab, -0.5 - i) for i in range(count)]

    def _probe(self, seen: Sequence[int], ids: Sequence[int]) -> list[float]:
        return [logprob_of(seen, token, self.vocab) for token in ids]


def text_engine(
    tokenizer: Tokenizer,
    config: Config | None = None,
    *,
    seconds: float = 0.0,
    capacity: int = 4096,
    context: int = 1024,
    running: int = 16,
    queued: int = 64,
    chunk: int | None = None,
    **facts: Any,
) -> tuple[LocalEngine, TextWorker]:
    """A running engine; the caller closes it. ``chunk``: most prompt tokens of a pass. ``facts``:
    more of what its info says."""
    worker = TextWorker(tokenizer.vocab_size, seconds=seconds)
    info = EngineInfo(
        model_path="toy", architecture="Toy", dtype="none", device="none",
        vocab_size=tokenizer.vocab_size, context_length=context, capacity=capacity, page_size=1,
        max_running_requests=running, max_queued_requests=queued, eos=tokenizer.eos_ids,
        hidden_size=4, **facts,
    )  # fmt: skip
    chunks = {} if chunk is None else {"chunked_prefill_size": chunk}
    config = config or Config.of(max_running_requests=running, max_queued_requests=queued, **chunks)
    return LocalEngine(config, tokenizer.token_bytes, (Threaded(worker), info)), worker
