"""Forward choice: selects the computation of passes at the start by computing some: a prompt, a
decode step and samples, then all passes of the warm-up. The first choice that works is used:

    graphs of an attention implementation    with half as many rows if memory is short
    the same implementation, eagerly         if it cannot be captured, or its graphs fail
    the next implementation                  if eager passes fail, with --attention-backend auto

A choice that fails (no compiler, a kernel that does not compile, a refused capture) is skipped with
one line in the log, which ``EngineInfo.fallbacks`` keeps. If the GPU itself is lost, the start
ends, because nothing else can run in this process.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from sglang.srt.attention.attention_protocol import Attention, Capturable
from sglang.srt.attention.backend_choice import BackendChoice
from sglang.srt.core.batch import Batch, Row
from sglang.srt.core.device_errors import out_of_memory
from sglang.srt.core.ints import ints
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.numeric.torch_later import torch
from sglang.srt.worker.fallbacks import ADVICE, Fallbacks, short_text
from sglang.srt.worker.forward import Eager, Forward, ForwardChoice
from sglang.srt.worker.graphs import GraphRecorder, Graphs
from sglang.srt.worker.inputs import InputReader
from sglang.srt.worker.kv import KVPool
from sglang.srt.worker.page_tables import PageTables
from sglang.srt.worker.warm_up import samples

log = logging.getLogger("sglang.srt.worker")
PROMPT = 5  # tokens of the prompt that is tried


def no_warm_up(forward: Forward) -> None:
    """Do nothing: the default of ``ForwardSettings.warm_up``."""


@dataclass(frozen=True)
class ForwardSettings:
    """Settings of ``choose_forward``.

    Attributes:
        length: tokens of the longest sequence.
        rows: rows of the largest CUDA graph; 0 for no graphs.
        recorder: returns a recorder for the graphs.
        fused_sampling: see ``forward.Eager``.
        trial: compute passes before the first request, as a test of the implementation.
        warm_up: computes the passes of the warm-up, if any. If it fails, so does the forward.
    """

    length: int
    rows: int
    recorder: Callable[[], GraphRecorder]
    fused_sampling: bool = True
    trial: bool = True
    warm_up: Callable[[Forward], None] = no_warm_up


def choose_forward(
    choices: Sequence[BackendChoice],
    make: Callable[[str], Attention],
    model: DecoderModel,
    pool: KVPool,
    settings: ForwardSettings,
) -> ForwardChoice:
    """Return the first of ``choices`` that works, with CUDA graphs if these work.

    ``make`` builds the attention implementation of a name over ``pool``; trial passes overwrite the
    pool. Raises RuntimeError, MemoryError or DeviceLost if no choice works.
    """
    failed = Fallbacks()
    for choice, following in zip_longest(choices, choices[1:]):
        if failed.lines:
            _release()
        try:
            used = _forward(choice, make, model, pool, settings, failed)
        except Exception as error:
            what, instead = f"attention by {choice.name}", "nothing is left"
            failed.note(what, error, instead if following is None else f"{following.name} is used")
            if following is not None:
                continue
            kind = MemoryError if out_of_memory(error) else RuntimeError
            raise kind(f"{what} failed: {short_text(error)}; {ADVICE}.") from error
        rows = used.sizes[-1] if isinstance(used, Graphs) else 0
        return ForwardChoice(used, "torch", choice.name, rows, tuple(failed.lines))
    raise AssertionError("there is at least one choice")


def _forward(
    choice: BackendChoice, make: Callable[[str], Attention], model: DecoderModel, pool: KVPool,
    settings: ForwardSettings, failed: Fallbacks,
) -> Forward:  # fmt: skip
    """Return a forward by the chosen implementation, warmed up: with graphs, else eager."""
    eager = _eager(make(choice.name), model, pool, settings, failed)
    log.info("attention: %s (%s)", choice.name, choice.reason)
    graphs = _graphs(choice.name, make, eager, pool, settings, failed)
    if graphs is not None:
        return graphs
    settings.warm_up(eager)
    return eager


def _graphs(
    name: str, make: Callable[[str], Attention], eager: Eager, pool: KVPool,
    settings: ForwardSettings, failed: Fallbacks,
) -> Graphs | None:  # fmt: skip
    """Return warmed-up graphs of ``settings.rows`` rows, halved while memory is short; None if no
    graphs work. Each attempt makes its own attention, because a failed attempt leaves incomplete
    buffers."""
    rows = settings.rows
    if rows and not isinstance(eager.attention, Capturable):
        log.info("no CUDA graphs: attention by %s uses new tensors in every pass", name)
        return None
    while rows:
        what, graphs = f"capturing CUDA graphs of {rows} rows", None
        try:
            graphs = _captured(make(name), rows, eager, pool, settings)
            what = f"the warm-up with CUDA graphs of {rows} rows"
            settings.warm_up(graphs)
            return graphs
        except Exception as error:
            graphs = None  # frees the graphs before the next attempt
            rows = rows // 2 if out_of_memory(error) else 0
            failed.note(what, error, f"{rows} rows are tried" if rows else "passes run eagerly")
        _release()
    return None


def _captured(
    attention: Attention, rows: int, eager: Eager, pool: KVPool, settings: ForwardSettings
) -> Graphs:
    assert isinstance(attention, Capturable)
    graphs = Graphs(eager.model, attention, settings.recorder(), pool, rows, settings.length)
    graphs.eager.fused_sampling = eager.fused_sampling
    return graphs


def _eager(
    attention: Attention, model: DecoderModel, pool: KVPool, settings: ForwardSettings,
    failed: Fallbacks,
) -> Eager:  # fmt: skip
    """Return an eager forward. With ``settings.trial``, first compute a prompt and a decode step
    in the pool's first pages, and samples of every kind."""
    eager = Eager(model, attention, settings.fused_sampling)
    if not settings.trial:
        return eager
    count = min(PROMPT, pool.capacity, settings.length)
    pages = ints(range(-(-count // pool.page_size)))
    vocab, device = eager.model.spec.vocab_size, pool.keys[0].device
    with torch.inference_mode():
        for start, new in ((0, count), (count - 1, 1)):
            row = Row(0, start, ints([0] * new), pages)
            tables = PageTables(pool.pages, pool.page_size)
            reader = InputReader(tables, device, vocab, settings.length, model.sections)
            inputs = reader.read(Batch(0, [row]))
            hidden = eager.hidden(inputs, np.array([new - 1], dtype=np.int32))
            hidden.sum().item()  # waits for the device, whose errors are raised here
        if eager.model.spec.purpose != "generate":
            return eager
        logits = eager.model.logits(hidden).float()
        try:
            for sample in samples(vocab).values():
                eager.draw(logits, [sample]).tokens.tolist()
        except Exception as error:
            if not eager.fused_sampling:
                raise
            failed.note("sampling by fused kernels", error, "torch's sampler is used")
            eager.fused_sampling = False
    return eager


def _release() -> None:
    """Free the memory of a failed attempt."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
