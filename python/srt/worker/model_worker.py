"""ModelWorker: the model, its KV pool and its runner, made from a Config."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from sglang.srt.attention import self_check
from sglang.srt.attention.attention_protocol import Attention
from sglang.srt.attention.backend_choice import FA3, build, candidates
from sglang.srt.config import Config, ModelConfig
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.workers import NO_MASKS, Finish, Masks
from sglang.srt.files.location import locate
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.models.model_spec import json_whitespace
from sglang.srt.worker.disk_pool import DiskPool, disk_pool
from sglang.srt.worker.features import Features
from sglang.srt.worker.forward import Forward
from sglang.srt.worker.forward_choice import (
    ForwardChoice,
    ForwardSettings,
    choose_forward,
    no_warm_up,
)
from sglang.srt.worker.graphs import CudaRecorder
from sglang.srt.worker.host_pool import HostPool, host_pages
from sglang.srt.worker.inputs import InputReader
from sglang.srt.worker.kv import KVPool, bytes_per_token, measured, pool_pages
from sglang.srt.worker.kv_fingerprint import fingerprint
from sglang.srt.worker.model_loading import ModelPlan, load_model, memory_use, plan_of
from sglang.srt.worker.page_tables import PageTables
from sglang.srt.worker.pass_timer import PassTimer
from sglang.srt.worker.runner import ModelRunner
from sglang.srt.worker.warm_up import WarmUpLimits, compilations_on, warm_up_both

CHECKED = (FA3,)  # attention implementations that are held to the reference first
log = logging.getLogger("sglang.srt.worker")

# Multiply-adds that one thread does in the time it takes to wake the others at every operation.
LIGHT = 1 << 27
# Torch's own number of threads, before a worker of this process has set another.
DEFAULT_THREADS = torch.get_num_threads()


class ModelWorker:
    """One device rank. Implements ``core.workers.Worker``.

    ``info`` holds the facts of ``engine.info.EngineInfo`` that the worker knows, by field name.
    """

    def __init__(self, config: Config, plan: ModelPlan | None = None) -> None:
        """Loads everything, and on a GPU compiles the kernels. ``plan``: of one rank's shard.
        Raises ValueError for a model that cannot be served, MemoryError for one that does not
        fit."""
        settings, memory = config.model, config.memory
        plan = plan or plan_of(config)
        self.device = plan.device
        make_current(plan.device)
        shard, storage, kv_dtype = plan.shard, plan.storage, plan.storage.kv_dtype
        spec = plan.local
        token_bytes = bytes_per_token(spec, kv_dtype)
        use = memory_use(plan, config)  # an estimate: what cannot fit is refused before it is read
        pool_pages(memory, token_bytes, use, plan.length, plan.device)
        threads = settings.threads or max(1, DEFAULT_THREADS // config.parallel.dp_size)
        with torch.inference_mode():
            try:
                loaded = load_model(plan, config, threads)
            except torch.OutOfMemoryError as error:
                raise MemoryError(
                    f"the weights do not fit {plan.device}, which had {use.available / 1e9:.2f} GB "
                    f"free ({use} were expected); use a smaller model or a larger GPU."
                ) from error
            self.model, self.adapters = loaded.model, loaded.adapters
            use = measured(use, plan.device)
            pages = shard.smallest(pool_pages(memory, token_bytes, use, plan.length, plan.device))
            pool = KVPool(spec.num_layers, spec.kv, pages, memory.page_size, kv_dtype, plan.device)
        host = shard.smallest(host_pages(memory, pages, token_bytes, plan.device))
        sections, features = self.model.sections, None
        if self.model.multimodal:
            features = Features(self.model.encode, config.media.media_cache_bytes)

        def runner_of(forward: Forward) -> ModelRunner:
            tables = PageTables(pool.pages, pool.page_size)
            reader = InputReader(tables, plan.device, spec.vocab_size, plan.length, sections)
            return ModelRunner(forward, pool, reader, features, bool(spec.labels), self.adapters)

        def prepare(forward: Forward) -> None:
            if not config.server.skip_server_warmup:
                warm_up_both(runner_of(forward), WarmUpLimits.of(config, spec))

        self.compilations = compiled = compilations_on(plan.device)
        chosen = forward_of(plan, settings, self.model, pool, threads, prepare)
        if compiled is not None:
            log.info("%d kernels ready, %.1f s to compile", compiled.count, compiled.seconds)
        # Beside native kernels, which have threads of their own, torch has little to do.
        self.threads = Threads(
            settings.threads if plan.torch_because else 1, storage.parameters, plan.device
        )
        self.runner = runner_of(chosen.forward)
        self.host = HostPool(pool, host) if host else None
        self.disk = disk_of(plan, config, chosen, self.host)
        self.info: dict[str, Any] = {
            "model_path": settings.model_path or plan.directory.name,
            "architecture": plan.architecture,
            "dtype": str(plan.dtype).removeprefix("torch."),
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
        """See ``core.workers.Worker.launch``. On a CPU a batch is computed when this returns."""
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
        """Launch a batch, its copies first; with host memory, measure what they take."""
        if self.host is None:
            return self.runner.launch(batch, masks)
        timer = PassTimer(self.device)
        if batch.moves is not None:
            self.host.move(batch.moves)
        timer.copied()
        return timer.timed(self.runner.launch(batch, masks))


def _compiled(finish: Finish, count: int) -> StepResult:
    """The outputs of a pass that compiled ``count`` kernels."""
    result = finish()
    result.compiled = count
    return result


def disk_of(
    plan: ModelPlan, config: Config, chosen: ForwardChoice, host: HostPool | None
) -> DiskPool | None:
    """The disk below host memory; None where there is none. Raises ValueError, OSError."""
    if host is None:
        return None
    kernels, width = f"{chosen.kernels} {chosen.attention}", host.page_bytes
    return disk_pool(config.memory, host, lambda: fingerprint(plan, config, kernels, width))


class Threads:
    """Number of torch's threads: always ``fixed`` where that is set; else one thread for a light
    pass and torch's own number for a heavy one. Set in the thread that runs the passes: others keep
    theirs."""

    def __init__(self, fixed: int, parameters: int, device: torch.device) -> None:
        self.most = fixed or DEFAULT_THREADS
        self.adaptive = not fixed and device.type == "cpu" and self.most > 1
        self.parameters = parameters

    def prepare(self, num_tokens: int) -> None:
        """Set the threads before a pass over ``num_tokens`` tokens."""
        light = self.adaptive and num_tokens * self.parameters <= LIGHT
        wanted = 1 if light else self.most
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)


def make_current(device: torch.device) -> None:
    """Make a GPU the calling thread's current one: Triton's kernels, events and captured graphs
    take that one, wherever their tensors are. Every thread has a current GPU of its own."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def forward_of(
    plan: ModelPlan, settings: ModelConfig, model: DecoderModel, pool: KVPool, threads: int,
    prepare: Callable[[Forward], None],
) -> ForwardChoice:  # fmt: skip
    """Forward passes by native kernels, or by the attention implementation and the graphs that
    run. ``prepare``: compute the warm-up, on a GPU."""
    if not plan.torch_because:
        from sglang.srt.worker.native_forward import Layered, Native

        group = plan.shard.group
        recorded = model.recordable and (group.size == 1 or group.meeting is not None)
        native = (Native if recorded else Layered)(model, pool, threads)
        log.info("kernels: sgl-kernel, %s, %d threads", native.isa, threads)
        return ForwardChoice(native, native.isa)
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
                spec.num_heads, spec.kv, spec.windows, size, dtype, plan.device,
            )  # fmt: skip
            checked.add(name)
        return build(name, pool.keys, pool.values, size, spec, disabled)

    return choose_forward(
        candidates(settings.attention_backend, plan.device, spec, dtype), make, model, pool,
        ForwardSettings(
            plan.length, rows, partial(CudaRecorder, plan.device),
            "sampling" not in disabled, on_gpu, prepare if on_gpu else no_warm_up,
        ),
    )  # fmt: skip
