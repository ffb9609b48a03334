"""``sglang doctor --prebuild``: compile what a server with the same flags would, and keep it.

    FlashInfer's modules   all at once, where that is the attention that would run, those of
                           FlashAttention-3 among them on GPUs of the Hopper family
    everything else        by a worker with random weights, whose warm-up launches every kernel

Both are kept on disk by what compiled them, so that the server that starts next only loads them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from sglang.srt.commands.doctor.finding import FAIL, OK, CheckFinding, examine
from sglang.srt.config import Config
from sglang.srt.numeric.host_arrays import torch_dtype

# KV tokens of the worker: how many there are makes no other kernel.
TOKENS = 4096


def prebuild(config: Config) -> list[CheckFinding]:
    """Compile, with a bar on a terminal. Returns what was compiled and how long it took."""
    return examine(
        [("flashinfer", lambda: modules(config)), ("kernels", lambda: kernels(config))]
        if (gpu := _gpu(config)).state == OK
        else [("prebuild", lambda: [gpu])]
    )


def _gpu(config: Config) -> CheckFinding:
    import torch
    from sglang.srt.worker.model_loading import device_of

    try:
        device = device_of(config.model.device)
    except ValueError as error:
        return CheckFinding("prebuild", FAIL, str(error), "run it on the machine with the GPU")
    if device.type == "cuda":
        return CheckFinding("prebuild", OK, torch.cuda.get_device_name(device))
    return CheckFinding(
        "prebuild", FAIL, f"there is no GPU to compile for: the device is {device.type}",
        "run it on the machine with the GPU; a CPU's kernels are compiled by pip install",
    )  # fmt: skip


def modules(config: Config) -> Iterator[CheckFinding]:
    """FlashInfer's modules for the model's layers."""
    from sglang.srt.attention.backend_choice import choose, takes_fa3
    from sglang.srt.attention.flashinfer_attention import TENSOR_CORES
    from sglang.srt.attention.flashinfer_modules import ModuleNeeds, build, specs
    from sglang.srt.models.weights import progress
    from sglang.srt.worker.model_loading import plan_of

    plan = plan_of(_random(config))
    spec, dtype = plan.spec, torch_dtype(plan.storage.kv_dtype)
    asked = config.model.attention_backend
    choice = choose(asked, plan.device, spec, dtype)
    if not choice.name.startswith("flashinfer"):
        found = f"not needed: attention by {choice.name} ({choice.reason})"
        yield CheckFinding("flashinfer", OK, found)
        return
    tensor_cores = spec.num_heads // spec.kv.heads >= TENSOR_CORES
    capped = bool(getattr(spec, "score_cap", 0.0))
    fa3 = takes_fa3(asked, plan.device, spec, dtype, capped)
    needs = ModuleNeeds(dtype, spec.kv.key_dim, tensor_cores, spec.windows, capped, fa3)
    wanted = specs(needs)
    ready = sum(each.is_compiled for each in wanted)
    with progress(len(wanted), "compiling FlashInfer's modules", unit=" modules") as bar:
        seconds = build(wanted, lambda count: bar.update(count - bar.n))
    names = ", ".join(each.name for each in wanted)
    found = f"{len(wanted) - ready} of {len(wanted)} modules compiled in {seconds:.0f} s ({names})"
    yield CheckFinding("flashinfer", OK, found)


def kernels(config: Config) -> Iterator[CheckFinding]:
    """All kernels that a worker launches, graphs included."""
    from sglang.srt.worker.model_worker import ModelWorker

    began = time.perf_counter()
    compiled = ModelWorker(_random(config)).compilations
    seconds = time.perf_counter() - began
    found = f"a worker started in {seconds:.0f} s"
    if compiled is not None:
        found += f", with {compiled.count} kernels of Triton ready in {compiled.seconds:.0f} s"
    yield CheckFinding("kernels", OK, found)


def _random(config: Config) -> Config:
    """The configuration with random weights, a small KV cache and the warm-up."""
    memory = replace(config.memory, max_total_tokens=max(TOKENS, config.memory.page_size))
    return replace(
        config, memory=memory, model=replace(config.model, load_format="dummy"),
        server=replace(config.server, skip_server_warmup=False),
    )  # fmt: skip
