"""Choice of a model's forward: native kernels without torch, native kernels among torch's
operations, or torch. A module that needs torch is imported only when it is chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang.srt.config import Config
from sglang.srt.layers.tape_writer import missing_word
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.worker.forward import Forward, ForwardChoice
from sglang.srt.worker.kv import KVPool
from sglang.srt.worker.model_loading import ModelPlan
from sglang.srt.worker.runner import ModelRunner

log = logging.getLogger("sglang.srt.worker")


def forward_of(
    plan: ModelPlan, config: Config, model: DecoderModel, pool: KVPool, threads: int,
    runner_of: Callable[[Forward], ModelRunner],
) -> tuple[Any, ForwardChoice]:  # fmt: skip
    """Return the count of compiled kernels, None without Triton, and the forward."""
    if plan.torch_because:
        from sglang.srt.worker.torch_passes import warmed_up

        return warmed_up(plan, config, model, pool, runner_of)
    native = native_forward(plan, model, pool, threads)
    log.info("kernels: sgl-kernel, %s, %d threads", native.isa, threads)
    return None, ForwardChoice(native, native.isa)


def native_forward(plan: ModelPlan, model: DecoderModel, pool: KVPool, threads: int) -> Any:
    """Return a forward by native kernels: a recorded op list if the model has one, else layered."""
    if plan.on_host:
        from sglang.srt.worker.host_forward import HostForward

        return HostForward(model, pool, threads)
    from sglang.srt.worker.native_forward import Layered, Native

    group = plan.shard.group
    recorded = not missing_word(model) and (group.size == 1 or group.meeting is not None)
    return (Native if recorded else Layered)(model, pool, threads)
