"""ModelRunner: one pass. Batch -> tensors -> hidden states -> the requested logits -> outputs."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.core.batch import (
    NONE_ALLOWED,
    Batch,
    Drawn,
    Row,
    RowOutput,
    RowScore,
    Sample,
    StepResult,
)
from sglang.srt.core.matcher import POSTPONED
from sglang.srt.core.workers import NO_MASKS, Finish, Mask, Masks
from sglang.srt.logits.device_results import results_of
from sglang.srt.logits.drawing import NOT_FINITE, Drawing, mask_bytes
from sglang.srt.logits.results import Fetching, Wanted
from sglang.srt.numeric.torch_later import without_gradients
from sglang.srt.worker.features import Features
from sglang.srt.worker.forward import Forward
from sglang.srt.worker.inputs import InputReader, Inputs
from sglang.srt.worker.kv import KVPool
from sglang.srt.worker.lora_weights import LoraWeights

# Logits computed at once, rows times vocabulary: bounds the memory of a long prompt's scores.
LOGITS = 1 << 24
STATES_NOT_FINITE = "the model's hidden states are not finite"


class _Tip(NamedTuple):
    """Position at which a token is sampled or log-probabilities are read.

    ``at``: index among the pass's tokens. ``row``: index of the row with this last position, -1 for
    a draft to verify. ``top``: number of most likely tokens to report, -1 for no log-probability.
    ``error``: why the mask was not made, "" for no error. ``packed``: as ``Row.packed``.
    """

    at: int
    row: int
    sample: Sample | None
    top: int
    probe: tuple[int, ...]
    out: Drawn
    error: str = ""
    packed: int = 0

    @property
    def reads(self) -> bool:
        return self.top >= 0 or bool(self.probe or self.packed)


class _Job(NamedTuple):
    """Scores to compute at consecutive positions of a row, from the pass's token ``first`` on."""

    row: int
    score: RowScore
    first: int


class ModelRunner:
    """Runs batches in order on a model that owns all layers. Mutates the KV pool and its tables."""

    def __init__(
        self,
        forward: Forward,
        pool: KVPool,
        reader: InputReader,
        features: Features | None = None,
        classifies: bool = False,
        adapters: LoraWeights | None = None,
        threads: int = 1,
    ) -> None:
        """``features``: given for a multimodal model. ``classifies``: pooling returns scores of
        labels. ``adapters``: None without LoRA. ``threads``: number of threads that read
        log-probabilities on a CPU."""
        self.forward, self.pool, self.reader = forward, pool, reader
        self.features, self.classifies = features, classifies
        self.adapters = adapters or LoraWeights.none()
        self.results = results_of(reader.device, threads)
        self._later: list[Callable[[], None]] = []  # fill the outputs after the pass
        self.drawn: Any = None  # tokens that the last batch sampled [rows]; 0 without a sample

    @without_gradients
    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        """Queue a pass. The returned function waits for the pass and returns its outputs. The
        next pass may be launched before that function is called. Raises ValueError, with no row
        computed, for a batch that cannot be computed."""
        self._later = []
        if batch.copies is not None:
            self.pool.copy(batch.copies)
        if not batch.rows and (batch.moves or batch.copies):  # the batch only copied
            self.reader.tables.drop(batch.dropped)
            return partial(StepResult, batch.id, [])
        inputs = self.reader.read(batch, self.drawn)
        outputs = [RowOutput() for _ in batch.rows]
        looked = (0, 0)
        if self.features is not None and any(row.pieces for row in batch.rows):
            inputs, looked = self.features.embed(batch, inputs, outputs)
        tips = list(_tips(batch.rows, inputs, outputs))
        jobs = list(_jobs(batch.rows, inputs, outputs))
        wanted = _wanted(batch.rows, inputs, tips, jobs)
        inputs = self.adapters.applied(batch, inputs, outputs)
        hidden = self.forward.hidden(inputs, wanted)
        # Masks are made while a GPU computes. The next copy to the GPU waits for the forward.
        tips = _masked(tips, masks.make(), self.reader.vocab)
        self._tips(batch, tips, wanted, hidden)
        self._scores(jobs, wanted, hidden, outputs)
        self._pool(batch, inputs, wanted, hidden, outputs)
        return partial(_finish, batch, outputs, self._later, looked)

    def _tips(self, batch: Batch, tips: list[_Tip], wanted: Int32Array, hidden: Any) -> None:
        """Sample tokens and read log-probabilities at the rows' last positions and drafts. Sets
        ``self.drawn``."""
        whole = len(tips) == len(batch.rows) and not any(row.checks for row in batch.rows)
        drawn, results = None, self.results
        size = max(1, LOGITS // self.reader.vocab)
        for k in range(0, len(tips), size):
            part = tips[k : k + size]
            at = _places(wanted, [tip.at for tip in part])
            logits = results.widened(self.forward.logits(results.pick(hidden, at)))
            tokens = self._draw(part, logits)
            self._read(part, logits, tokens)
            if whole and len(part) == len(tips):
                drawn = tokens
                continue
            if drawn is None:
                drawn = results.no_tokens(len(batch.rows))
            last = [j for j, tip in enumerate(part) if tip.row >= 0]
            results.put(drawn, [part[j].row for j in last], results.rows(tokens, last))
        self.drawn = drawn

    def _draw(self, tips: list[_Tip], logits: Any) -> Any:
        """Sample at ``tips`` from their logits. Return token ids [len(tips)], 0 for no sample."""
        drawn = [tip for tip in tips if tip.sample is not None]
        samples = [tip.sample for tip in drawn if tip.sample is not None]
        if len(drawn) == len(tips):
            drawing = self.forward.draw(logits, samples)
            tokens = drawing.tokens
        else:
            tokens = self.results.no_tokens(len(tips))
            if not drawn:
                return tokens
            local = [j for j, tip in enumerate(tips) if tip.sample is not None]
            drawing = self.forward.draw(self.results.rows(logits, local), samples)
            self.results.put(tokens, local, drawing.tokens)
        fetched = self.results.fetch(drawing)
        self._later.append(partial(_settle, drawn, drawing, fetched))
        return tokens

    def _read(self, tips: list[_Tip], logits: Any, tokens: Any) -> None:
        """Put log-probabilities into the outputs of the ``tips`` that request them."""
        wants = [j for j, tip in enumerate(tips) if tip.reads]
        if not wants:
            return
        while self._later:  # the outputs need their sampled tokens before log-probabilities
            self._later.pop(0)()
        reading, results = [tips[j] for j in wants], self.results
        rows = results.narrowed(results.rows(logits, wants), [tip.sample for tip in reading])
        tops, probes = [tip.top for tip in reading], [tip.probe for tip in reading]
        wanted = Wanted(tops, probes, [tip.packed for tip in reading])
        found = results.read(rows, results.rows(tokens, wants), wanted)
        for tip, pair in zip(reading, found.packed):
            tip.out.ids, tip.out.logprobs = pair
        for tip, value, top, probe in zip(reading, found.chosen, found.tops, found.probes):
            output = tip.out
            if value != value and not output.error:
                output.token, output.error = -1, NOT_FINITE
            if not output.error:
                output.top, output.probe = [pair for pair in top if pair[1] > -math.inf], probe
                if _top(tip.sample) >= 0:
                    output.logprob = value

    def _scores(
        self, jobs: list[_Job], wanted: Int32Array, hidden: Any, outputs: list[RowOutput]
    ) -> None:
        """Put log-probabilities of given tokens into ``outputs``, ``LOGITS`` logits at a time."""
        where = [
            (i, score, first, j) for i, score, first in jobs for j in range(len(score.targets))
        ]
        size = max(1, LOGITS // self.reader.vocab)
        for k in range(0, len(where), size):
            part = where[k : k + size]
            at = _places(wanted, [first + j for _, _, first, j in part])
            logits = self.forward.logits(self.results.pick(hidden, at))
            targets = [s.targets[j] for _, s, _, j in part]
            tops, probes = [s.top for _, s, _, _ in part], [s.probe for _, s, _, _ in part]
            found = self.results.read(logits, targets, Wanted(tops, probes))
            values = zip(part, found.chosen, found.tops, found.probes)
            for (i, *_), value, top, probe in values:
                output = outputs[i]
                if value != value and not output.error:
                    output.error = NOT_FINITE
                output.scores.append(value)
                output.score_tops.append(top)
                output.score_probes.append(probe)

    def _pool(
        self, batch: Batch, inputs: Inputs, wanted: Int32Array, hidden: Any,
        outputs: list[RowOutput],
    ) -> None:  # fmt: skip
        """Set ``pooled`` of the rows that request it, from ``hidden`` [len(wanted), width], the
        normed states of the tokens ``wanted``: sums of states, or a classifier's scores of them.
        The classifier is linear, so the scores of a sum are the sum of the scores."""
        rows = [i for i, row in enumerate(batch.rows) if row.pool >= 0]
        if not rows:
            return
        spans = []
        for i in rows:
            low, high = pooled_span(batch.rows[i], int(inputs.firsts[i]))
            place = int(np.searchsorted(wanted, low))
            spans.append((place, place + high - low, batch.rows[i].every))
        score = self.forward.logits if self.classifies else None
        (values, finite), first = self.results.pooled(hidden, spans, score), 0
        for i, (low, high, every) in zip(rows, spans):
            own = slice(first, first := first + (high - low if every else 1))
            outputs[i].pooled = array("d", values[own].tobytes())
            if not finite[own].all() and not outputs[i].error:
                outputs[i].error = STATES_NOT_FINITE


def _settle(tips: list[_Tip], drawing: Drawing, fetched: Fetching) -> None:
    """Wait for sampled tokens and put them into the outputs."""
    for tip, value, problem in zip(tips, *drawing.outcome(fetched.wait())):
        error = tip.error or problem
        tip.out.postponed = error == POSTPONED and not tip.out.error
        tip.out.token, tip.out.error = (-1, error) if error else (value, tip.out.error)


def _finish(
    batch: Batch,
    outputs: list[RowOutput],
    later: list[Callable[[], None]],
    looked: tuple[int, int],
) -> StepResult:
    while later:
        later.pop(0)()
    return StepResult(batch.id, outputs, *looked)


def _masked(tips: list[_Tip], masks: Sequence[Mask], vocab: int) -> list[_Tip]:
    """Return ``tips`` with masks in place of mask indices. A mask with an error is replaced by one
    that allows all tokens; the output gets the error in place of the token."""
    if not masks:
        return tips
    return [
        tip
        if tip.sample is None or not isinstance(tip.sample.mask, int)
        else _with_mask(tip, tip.sample, masks[tip.sample.mask], vocab)
        for tip in tips
    ]


def _with_mask(tip: _Tip, sample: Sample, mask: Mask, vocab: int) -> _Tip:
    words, error = mask.words, mask.error
    if error:
        words = b"\xff" * mask_bytes(vocab)
        error = error if error == POSTPONED else f"{NONE_ALLOWED}: {error}"
    return tip._replace(sample=sample.with_mask(words), error=error)


def _wanted(rows: list[Row], inputs: Inputs, tips: list[_Tip], jobs: list[_Job]) -> Int32Array:
    """Return the ascending indices of the pass's tokens whose hidden states are read, int32."""
    at = np.array([tip.at for tip in tips], dtype=np.int32)
    spans = [(job.first, job.first + len(job.score.targets)) for job in jobs]
    spans += [pooled_span(row, int(first)) for row, first in zip(rows, inputs.firsts)
              if row.pool >= 0]  # fmt: skip
    if not spans:
        return at  # already ascending
    return np.unique(np.concatenate([at, *(np.arange(*span, dtype=np.int32) for span in spans)]))


def _places(wanted: Int32Array, tokens: list[int]) -> Int32Array:
    """Return the indices of ``tokens`` in the ascending array ``wanted``, int32."""
    found = np.searchsorted(wanted, np.array(tokens, dtype=np.int32))
    return found.astype(np.int32)


def _jobs(rows: list[Row], inputs: Inputs, outputs: list[RowOutput]) -> Iterator[_Job]:
    """Yield the scores that rows request. A row whose request exceeds its tokens gets an error."""
    for i, row in enumerate(rows):
        if row.score is None:
            continue
        if 0 <= row.score.at <= len(row.tokens) - len(row.score.targets):
            yield _Job(i, row.score, int(inputs.firsts[i]) + row.score.at)
            continue
        outputs[i].error = (
            f"scores of {len(row.score.targets)} tokens from {row.score.at} on lie outside a row "
            f"of {len(row.tokens)}"
        )


def _tips(rows: list[Row], inputs: Inputs, outputs: list[RowOutput]) -> Iterator[_Tip]:
    """Yield, ascending, the positions at which a token is sampled or logits are read."""
    ends = (inputs.firsts + inputs.layout.counts - 1).tolist()
    for i, row in enumerate(rows):
        if row.checks:
            outputs[i].checks = [Drawn() for _ in row.checks]
            first = ends[i] - len(row.checks)
            for j, sample in enumerate(row.checks):
                check = outputs[i].checks[j]
                yield _Tip(first + j, -1, sample, _top(sample), row.probe, check)
        if row.sample is not None or row.tip_top or row.probe or row.packed:
            top = max(_top(row.sample), row.tip_top or -1)
            tip = _Tip(ends[i], i, row.sample, top, row.probe, outputs[i])
            if row.packed:
                tip = tip._replace(packed=row.packed)
            if row.sample is not None and i in inputs.followed:
                tip = tip._replace(sample=row.sample.after(inputs.followed[i]))
            yield tip


def _top(sample: Sample | None) -> int:
    return -1 if sample is None else sample.top


def pooled_span(row: Row, first: int) -> tuple[int, int]:
    """Return the range of a row's tokens to pool, as indices into the pass. ``first``: index of the
    row's first token."""
    return first + row.pool, first + len(row.tokens)
