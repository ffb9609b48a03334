"""Forward choice: how passes are computed, found out at the start by computing some: a prompt, a
decode step and samples, then all passes of the warm-up.

    graphs of an attention implementation    of half as many rows where memory is short
    the same implementation, eagerly         where it cannot be captured, or its graphs fail
    the next implementation                  where that fails too, with --attention-backend auto

What fails (a compiler that is missing, a kernel that does not compile, a capture that is refused)
is passed over with one line in the log, which ``EngineInfo.fallbacks`` keeps. An error that takes
the device away ends the start: nothing else could run in this process.
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
    """Compute nothing."""


@dataclass(frozen=True)
class ForwardSettings:
    """Requirements that a forward is chosen by.

    Attributes:
        length: tokens of the longest sequence.
        rows: rows of the largest CUDA graph; 0 for no graphs.
        recorder: records the graphs.
        fused_sampling: see ``forward.Eager``.
        trial: whether to compute passes before the first request, to see that they work.
        warm_up: computes the passes of the warm-up, if any; an error in it makes the forward fail.
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
    """The first of ``choices`` that runs, as graphs where that works too.

    ``make`` builds the implementation called a name over ``pool``, whose contents change. Raises
    RuntimeError, MemoryError or DeviceLost where none runs.
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
    """Passes by the chosen implementation, warmed up: as graphs, or eagerly."""
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
    """Graphs of ``settings.rows`` rows, or of the half of them, and so on, where memory is short,
    warmed up; None where there can be none. Each attempt has an attention of its own: a failed one
    leaves buffers half made."""
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
            graphs = None  # frees them before the next are captured
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
    """Eager passes, one of which has been computed: a prompt and a decode step in the pool's first
    pages, and samples."""
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
            hidden.sum().item()  # waits: errors of the device show here
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
    """Free what a failed attempt held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
