"""ModelRunner: one pass. Batch -> tensors -> hidden states -> the few logits wanted -> outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from srt.attention.base import Attention
from srt.core.batch import Batch, Row, RowOutput, Score, StepResult
from srt.models.llama import LlamaForCausalLM
from srt.worker import logprobs as readout
from srt.worker.inputs import Inputs, read_batch
from srt.worker.kv import KVPool
from srt.worker.sampler import NOT_FINITE, draw

# Logits computed at once: bounds the memory of a long prompt's scores.
LOGITS = 1 << 24


class ModelRunner:
    """Runs batches in order on a model that owns all layers. Mutates the KV pool."""

    def __init__(
        self, model: LlamaForCausalLM, attention: Attention, pool: KVPool, context_length: int
    ) -> None:
        self.model, self.attention, self.pool = model, attention, pool
        self.context_length, self.vocab = context_length, model.spec.vocab_size
        self.device = pool.keys[0].device
        self.drawn: Tensor | None = None  # tokens the last batch drew [rows]; 0 where none

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepResult:
        """Raises ValueError for a batch that cannot be computed; none of it is then."""
        pool = self.pool
        inputs = read_batch(
            batch, self.drawn, self.vocab, self.context_length, pool.pages, pool.page_size,
            self.device,
        )  # fmt: skip
        self.attention.plan(inputs.layout)
        hidden = self.model.forward(inputs.tokens, inputs.positions, self.attention)
        outputs = [RowOutput() for _ in batch.rows]
        self._tips(batch, inputs, hidden, outputs)
        self._scores(batch, inputs, hidden, outputs)
        for row, output in zip(batch.rows, outputs):
            if row.adapter is not None:
                output.error = f"adapter {row.adapter!r} is not loaded"
        return StepResult(batch.id, outputs)

    def _tips(self, batch: Batch, inputs: Inputs, hidden: Tensor, outputs: list[RowOutput]) -> None:
        """Draws, most likely tokens and probes at the rows' last positions. Sets ``drawn``."""
        rows = batch.rows
        wanted = [
            i for i, row in enumerate(rows) if row.sample is not None or row.tip_top or row.probe
        ]
        drawn = None
        ends = (inputs.firsts + inputs.layout.counts - 1).tolist()
        size = max(1, LOGITS // self.vocab)
        for k in range(0, len(wanted), size):
            part = wanted[k : k + size]
            at = [ends[i] for i in part]
            logits = self.model.logits(self._pick(hidden, at)).float()
            tokens = self._draw(part, rows, logits, outputs)
            self._read(part, rows, logits, tokens, outputs)
            if len(part) == len(rows):
                drawn = tokens
                continue
            if drawn is None:
                drawn = torch.zeros(len(rows), dtype=torch.int64, device=self.device)
            drawn[torch.tensor(part, device=self.device)] = tokens
        self.drawn = drawn

    def _pick(self, hidden: Tensor, at: list[int]) -> Tensor:
        if len(at) == hidden.shape[0]:  # ascending and distinct, so all of them
            return hidden
        return hidden.index_select(0, torch.tensor(at, device=self.device))

    def _draw(
        self, part: list[int], rows: list[Row], logits: Tensor, outputs: list[RowOutput]
    ) -> Tensor:
        """Tokens of ``part`` [len(part)], 0 where none is asked for."""
        samples = [rows[i].sample for i in part]
        drawing = [s for s in samples if s is not None]
        if len(drawing) == len(part):
            tokens, errors = draw(logits, drawing)
            places = part
        else:
            tokens = torch.zeros(len(part), dtype=torch.int64, device=self.device)
            if not drawing:
                return tokens
            local = [j for j, s in enumerate(samples) if s is not None]
            places = [part[j] for j in local]
            index = torch.tensor(local, device=self.device)
            some, errors = draw(logits.index_select(0, index), drawing)
            tokens[index] = some
        values = iter(tokens.tolist())
        for i, value in zip(part, list(values)):
            if rows[i].sample is not None:
                outputs[i].token = value
        for i, error in zip(places, errors):
            if error:
                outputs[i].token, outputs[i].error = -1, error
        return tokens

    def _read(
        self,
        part: list[int],
        rows: list[Row],
        logits: Tensor,
        tokens: Tensor,
        outputs: list[RowOutput],
    ) -> None:
        """Log-probabilities at the tips of ``part``, where any are wanted."""
        wants = [
            j for j, i in enumerate(part) if rows[i].tip_top or rows[i].probe or _top(rows[i]) >= 0
        ]
        if not wants:
            return
        index = torch.tensor(wants, device=self.device)
        logprobs = readout.log_softmax(logits.index_select(0, index))
        places = [part[j] for j in wants]
        tops = [max(_top(rows[i]), rows[i].tip_top) for i in places]
        values = zip(
            places,
            readout.chosen(logprobs, tokens.index_select(0, index)),
            readout.top_lists(logprobs, tops),
            readout.probe_lists(logprobs, [rows[i].probe for i in places]),
        )
        for i, value, top, probe in values:
            output = outputs[i]
            if value != value and not output.error:
                output.token, output.error = -1, NOT_FINITE
            if not output.error:
                output.top, output.probe = top, probe
                if _top(rows[i]) >= 0:
                    output.logprob = value

    def _scores(
        self, batch: Batch, inputs: Inputs, hidden: Tensor, outputs: list[RowOutput]
    ) -> None:
        """Log-probabilities of given tokens, a bounded number of positions at a time."""
        jobs: list[tuple[int, Score, int]] = []  # row, score, first flat position
        for i, row in enumerate(batch.rows):
            if row.score is None:
                continue
            if not 0 <= row.score.at <= len(row.tokens) - len(row.score.targets):
                outputs[i].error = (
                    f"scores of {len(row.score.targets)} tokens from {row.score.at} on lie outside "
                    f"a row of {len(row.tokens)}"
                )
                continue
            jobs.append((i, row.score, int(inputs.firsts[i]) + row.score.at))
        where = [
            (i, score, first, j) for i, score, first in jobs for j in range(len(score.targets))
        ]
        size = max(1, LOGITS // self.vocab)
        for k in range(0, len(where), size):
            part = where[k : k + size]
            at = torch.tensor([first + j for _, _, first, j in part], device=self.device)
            logits = self.model.logits(hidden.index_select(0, at))
            logprobs = readout.log_softmax(logits)
            targets = torch.tensor([s.targets[j] for _, s, _, j in part], device=self.device)
            values = readout.chosen(logprobs, targets)
            tops = readout.top_lists(logprobs, [s.top for _, s, _, _ in part])
            probes = readout.probe_lists(logprobs, [s.probe for _, s, _, _ in part])
            for (i, *_), value, top, probe in zip(part, values, tops, probes):
                output = outputs[i]
                if value != value and not output.error:
                    output.error = NOT_FINITE
                output.scores.append(value)
                output.score_tops.append(top)
                output.score_probes.append(probe)


def _top(row: Row) -> int:
    return -1 if row.sample is None else row.sample.top
