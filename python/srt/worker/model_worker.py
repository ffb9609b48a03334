"""ModelWorker: the model, its KV pool and its runner, made from a Config."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial
from typing import Any

from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.device_errors import out_of_memory
from sglang.srt.core.workers import NO_MASKS, Finish, Masks
from sglang.srt.files.location import locate
from sglang.srt.models.model_spec import json_whitespace
from sglang.srt.numeric.torch_later import torch
from sglang.srt.worker.disk_pool import DiskPool, disk_pool
from sglang.srt.worker.forward import Forward, ForwardChoice
from sglang.srt.worker.forward_making import forward_of
from sglang.srt.worker.host_pool import HostPool, host_pages
from sglang.srt.worker.inputs import InputReader
from sglang.srt.worker.kv import KVPool, bytes_per_token, measured, pool_pages
from sglang.srt.worker.kv_fingerprint import fingerprint
from sglang.srt.worker.model_loading import ModelPlan, load_model, memory_use, plan_of
from sglang.srt.worker.page_tables import PageTables
from sglang.srt.worker.pass_timer import PassTimer
from sglang.srt.worker.runner import ModelRunner
from sglang.srt.worker.threads import Threads, default_threads, make_current

log = logging.getLogger("sglang.srt.worker")


class ModelWorker:
    """One device rank. Implements ``core.workers.Worker``.

    ``info`` holds the facts of ``engine.info.EngineInfo`` that the worker knows, by field name.
    """

    def __init__(self, config: Config, plan: ModelPlan | None = None) -> None:
        """Load the model and, on a GPU, compile the kernels. ``plan``: description of one rank's
        shard, default the whole model. Raises ValueError for a model that cannot be served,
        MemoryError for a model that does not fit."""
        settings, memory = config.model, config.memory
        plan = plan or plan_of(config)
        self.device = plan.device
        make_current(plan.device)
        shard, storage, kv_dtype = plan.shard, plan.storage, plan.storage.kv_dtype
        spec = plan.local
        token_bytes = bytes_per_token(spec, kv_dtype)
        use = memory_use(plan, config)  # an estimate: pool_pages raises before weights are read
        pool_pages(memory, token_bytes, use, plan.length, plan.device)
        threads = settings.threads or max(1, default_threads() // config.parallel.dp_size)
        with nullcontext() if plan.on_host else torch.inference_mode():
            try:
                loaded = load_model(plan, config, threads)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                raise MemoryError(
                    f"the weights do not fit {plan.device}, which had {use.available / 1e9:.2f} GB "
                    f"free ({use} were expected); use a smaller model or a larger GPU."
                ) from error
            self.model, self.adapters = loaded.model, loaded.adapters
            use = measured(use, plan.device)
            pages = shard.smallest(pool_pages(memory, token_bytes, use, plan.length, plan.device))
            pool = KVPool(spec.num_layers, spec.kv, pages, memory.page_size, kv_dtype, plan.place)
        host = shard.smallest(host_pages(memory, pages, token_bytes, plan.device))
        sections, features = self.model.sections, None
        if self.model.multimodal:
            from sglang.srt.worker.features import Features

            features = Features(self.model.encode, config.media.media_cache_bytes)

        def runner_of(forward: Forward) -> ModelRunner:
            tables = PageTables(pool.pages, pool.page_size)
            reader = InputReader(tables, plan.place, spec.vocab_size, plan.length, sections)
            return ModelRunner(
                forward, pool, reader, features, bool(spec.labels), self.adapters, threads
            )

        self.compilations, chosen = forward_of(plan, config, self.model, pool, threads, runner_of)
        # With native kernels, which have their own threads, torch computes little: one thread.
        self.threads = Threads(
            settings.threads if plan.torch_because else 1, storage.parameters, plan.place
        )
        self.runner = runner_of(chosen.forward)
        self.host = HostPool(pool, host) if host else None
        self.disk = disk_of(plan, config, chosen, self.host)
        self.info: dict[str, Any] = {
            "model_path": settings.model_path or plan.directory.name,
            "architecture": plan.architecture,
            "dtype": plan.dtype.name,
            "device": str(plan.device),
            "kernels": chosen.kernels,
            "attention": chosen.attention,
            "graph_rows": chosen.graph_rows,
            "fallbacks": (*loaded.fallbacks, *chosen.fallbacks),
            "quantization": (plan.checkpoint and plan.checkpoint.method) or storage.quantization,
            "vocab_size": spec.vocab_size,
            "context_length": plan.length,
            "capacity": pool.capacity,
            "host_capacity": host * pool.page_size,
            "disk_capacity": self.disk.slots * self.disk.slot_tokens if self.disk else 0,
            "page_size": pool.page_size,
            "eos": spec.eos,
            "parameters": storage.parameters,
            "weight_bytes": loaded.weight_bytes,
            "kv_bytes_per_token": bytes_per_token(plan.spec, kv_dtype),
            "hidden_size": spec.hidden_size,
            "purpose": spec.purpose,
            "labels": spec.labels,
            "vision": features is not None,
            "windowed": any(plan.spec.windows),
            "sections": sections,
            "json_whitespace_pattern": config.grammar.json_whitespace(
                json_whitespace(plan.directory)
            ),
        }

    def load_adapter(self, number: int, path: str, pinned: bool = False) -> dict[str, Any]:
        """See ``core.workers.Worker.load_adapter``."""
        if self.adapters is None:
            raise ValueError("adapters are off; start with --enable-lora.")
        make_current(self.device)
        return self.adapters.load(number, str(locate(path)), pinned)

    def unload_adapter(self, number: int) -> None:
        """See ``core.workers.Worker.unload_adapter``."""
        if self.adapters is not None:
            self.adapters.unload(number)

    def run(self, batch: Batch, masks: Masks = NO_MASKS) -> StepResult:
        """Launch a batch and wait for its outputs."""
        return self.launch(batch, masks)()

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        """See ``core.workers.Worker.launch``. On a CPU it returns after the computation."""
        make_current(self.device)
        self.threads.prepare(batch.num_tokens)
        compiled = self.compilations
        before, seconds = (compiled.count, compiled.seconds) if compiled else (0, 0.0)
        finish = self._timed(batch, masks)
        if compiled is None or compiled.count == before:
            return finish
        log.warning(
            "a pass of %d rows and %d tokens compiled %d kernels (%s) in %.1f s; "
            "the warm-up should have: please report the model and the flags",
            len(batch.rows), batch.num_tokens, compiled.count - before, compiled.last,
            compiled.seconds - seconds,
        )  # fmt: skip
        return partial(_compiled, finish, compiled.count - before)

    def _timed(self, batch: Batch, masks: Masks) -> Finish:
        """Launch a batch; with a host pool, first its copies, and measure the seconds of both."""
        if self.host is None:
            return self.runner.launch(batch, masks)
        timer = PassTimer(self.device)
        if batch.moves is not None:
            self.host.move(batch.moves)
        timer.copied()
        return timer.timed(self.runner.launch(batch, masks))


def _compiled(finish: Finish, count: int) -> StepResult:
    """Wait for a pass. Return its result with ``compiled`` set to ``count``."""
    result = finish()
    result.compiled = count
    return result


def disk_of(
    plan: ModelPlan, config: Config, chosen: ForwardChoice, host: HostPool | None
) -> DiskPool | None:
    """Return the disk tier below host memory, None without one. Raises ValueError, OSError."""
    if host is None:
        return None
    kernels, width = f"{chosen.kernels} {chosen.attention}", host.page_bytes
    return disk_pool(config.memory, host, lambda: fingerprint(plan, config, kernels, width))
