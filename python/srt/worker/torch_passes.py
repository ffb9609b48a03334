"""Forward passes by torch: choice of the attention implementation and of CUDA graphs. On a GPU the
warm-up compiles the kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sglang.srt.attention import self_check
from sglang.srt.attention.attention_protocol import Attention
from sglang.srt.attention.backend_choice import FA3, build, candidates
from sglang.srt.config import Config, ModelConfig
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.worker.forward import Forward, ForwardChoice
from sglang.srt.worker.forward_choice import ForwardSettings, choose_forward, no_warm_up
from sglang.srt.worker.graphs import CudaRecorder
from sglang.srt.worker.kv import KVPool
from sglang.srt.worker.model_loading import ModelPlan
from sglang.srt.worker.runner import ModelRunner
from sglang.srt.worker.warm_up import WarmUpLimits, compilations_on, warm_up_both

if TYPE_CHECKING:
    from sgl_kernel.triton.compilations import Compilations

CHECKED = (FA3,)  # attention implementations whose results are compared with the reference first
log = logging.getLogger("sglang.srt.worker")


def warmed_up(
    plan: ModelPlan, config: Config, model: DecoderModel, pool: KVPool,
    runner_of: Callable[[Forward], ModelRunner],
) -> tuple[Compilations | None, ForwardChoice]:  # fmt: skip
    """Return the count of compiled kernels, None without a GPU, and the warmed-up forward."""

    def prepare(forward: Forward) -> None:
        if not config.server.skip_server_warmup:
            warm_up_both(runner_of(forward), WarmUpLimits.of(config, plan.local))

    compiled = compilations_on(plan.place)
    chosen = by_torch(plan, config.model, model, pool, prepare)
    if compiled is not None:
        log.info("%d kernels ready, %.1f s to compile", compiled.count, compiled.seconds)
    return compiled, chosen


def by_torch(
    plan: ModelPlan, settings: ModelConfig, model: DecoderModel, pool: KVPool,
    prepare: Callable[[Forward], None],
) -> ForwardChoice:  # fmt: skip
    """Return a forward by the first attention implementation that works, with graphs if they work.
    ``prepare``: computes the warm-up; called on a GPU only."""
    if plan.device.type == "cpu":
        log.info("kernels: torch (%s)", plan.torch_because)
    disabled, on_gpu = settings.disable_fused_kernels, plan.device.type == "cuda"
    rows = settings.cuda_graph_max_bs if on_gpu and not settings.disable_cuda_graph else 0
    if general := {"decode", "moe"}.intersection(disabled) if rows else set():
        log.info("no CUDA graphs: --disable-fused-kernels %s", ",".join(sorted(general)))
        rows = 0

    dtype, spec = pool.keys[0].dtype, plan.local
    size, checked = pool.page_size, set[str]()

    def make(name: str) -> Attention:
        if name in CHECKED and name not in checked:
            self_check.check(
                lambda keys, values: build(name, keys, values, size, spec, disabled),
                spec.num_heads, spec.kv, spec.windows, size, dtype, plan.place,
            )  # fmt: skip
            checked.add(name)
        return build(name, pool.keys, pool.values, size, spec, disabled)

    return choose_forward(
        candidates(settings.attention_backend, plan.place, spec, dtype), make, model, pool,
        ForwardSettings(
            plan.length, rows, partial(CudaRecorder, plan.place),
            "sampling" not in disabled, on_gpu, prepare if on_gpu else no_warm_up,
        ),
    )  # fmt: skip
