"""A rank: the process that computes one shard of a model.

The rank loads its part of the weights, agrees with the other ranks on the size of the KV cache, and
computes batches in the order in which the planner sends them. The rank ends when its parent ends.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch
from sglang.srt.core.version import __version__
from sglang.srt.core.workers import Mask
from sglang.srt.ranks.batch_frames import batch_of
from sglang.srt.ranks.layout import RankLayout, stage_layers
from sglang.srt.ranks.links import InLink, OutLink, finish_sending, reached_as
from sglang.srt.ranks.rank_messages import (
    Hello,
    LoadedOnRank,
    LoadOnRank,
    Offer,
    Outcome,
    PassFailed,
    PassPlan,
    PlanMasks,
    RankFailed,
    RankMessage,
    Ready,
    Smallest,
    Stop,
    UnloadOnRank,
    Welcome,
    decode_message,
    encode_message,
)
from sglang.srt.system import logs
from sglang.srt.system.processes import when_orphaned

if TYPE_CHECKING:
    from sgl_kernel.meeting import Meeting
    from sglang.srt.parallel.groups import Group
    from sglang.srt.worker.model_loading import ModelPlan
    from sglang.srt.worker.model_worker import ModelWorker

log = logging.getLogger("sglang.srt.ranks")
PR_SET_PDEATHSIG = 1
M = TypeVar("M", bound=RankMessage)


class RankStart(msgspec.Struct, frozen=True):
    """Arguments of a rank's process.

    Attributes:
        planner: address at which the planner receives messages.
        directory: directory of the node's sockets and of the file ``config``.
        parent: id of the parent process; the rank ends when it ends.
        host, port: address of node 0; "" if all ranks are on one machine.
        memory: descriptor of the shared memory of the stage's ranks; -1: none.
    """

    rank: int
    epoch: int
    planner: str
    directory: str
    parent: int
    host: str = ""
    port: int = 0
    memory: int = -1


class RankError(RuntimeError):
    """The rank cannot continue."""


class PlannerLink:
    """Sends messages to the planner and receives the planner's messages in order."""

    def __init__(self, start: RankStart, inbox: InLink) -> None:
        self.start, self.inbox = start, inbox
        self._out = OutLink(start.planner)
        self._kept: deque[RankMessage] = deque()  # received by ``wait_for``, for ``next``
        self.dropped = 0  # number of frames of other epochs

    def send(self, message: RankMessage) -> None:
        self._out.send(encode_message(message))

    def next(self) -> RankMessage:
        """Wait for the next message."""
        return self._kept.popleft() if self._kept else self._take()

    def wait_for(self, kind: type[M]) -> M:
        """Wait for the next message of a kind. Messages that arrive before it are kept for
        ``next``. Raises RankError for a Stop."""
        while not isinstance(message := self._take(), kind):
            if isinstance(message, Stop):
                raise RankError("the planner has stopped the rank")
            self._kept.append(message)
        return message

    def _take(self) -> RankMessage:
        while True:
            parts = self.inbox.take()
            assert parts is not None
            message = decode_message(parts[0])
            if message.epoch == self.start.epoch:
                return message
            self.dropped += 1
            log.warning("dropped a message of epoch %d", message.epoch)

    def close(self) -> None:
        self._out.close()


class Rank:
    """One shard of the model, with its links to the planner and to other ranks."""

    def __init__(self, start: RankStart, config: Config) -> None:
        self.start, self.layout = start, RankLayout.of(config.parallel)
        self.config = config
        rank, layout = start.rank, self.layout
        self.stage, self.samples = layout.stage(rank), rank == layout.sampling
        directory = None if start.host else Path(start.directory)
        host = reached_as(start.host, start.port) if start.host else ""
        self.host = host
        self.link = PlannerLink(start, InLink.of(directory, f"{rank}i", host))
        self.ids = InLink.of(directory, f"{rank}d", host)
        self.states = InLink.of(directory, f"{rank}a", host)
        self._previous = -1  # id of the previous batch with rows

    # -- start -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Load the shard and compute batches until the planner stops the rank."""
        plan = plan_rank(self.config, self.start.rank)
        store = self._store()
        self.link.send(
            Hello(
                self.start.epoch, self.start.rank, self.link.inbox.address, self.ids.address,
                self.states.address, store.address, facts_of(plan, self.config),
            )
        )  # fmt: skip
        welcome = self.link.wait_for(Welcome)
        group = store.join(welcome.store, plan)
        shard = replace(plan.shard, group=group, smallest=self._smallest)
        self._load(replace(plan, shard=shard), welcome)
        self.serve()

    def _store(self) -> Rendezvous:
        return Rendezvous(self.start, self.layout, self.host)

    def _smallest(self, number: int) -> int:
        self.link.send(Offer(self.start.epoch, self.start.rank, number))
        return self.link.wait_for(Smallest).number

    def _load(self, plan: ModelPlan, welcome: Welcome) -> None:
        from sglang.srt.ranks.stages import IdsLink, RankForward, StageRunner, StatesLink
        from sglang.srt.worker.model_worker import ModelWorker

        layout, rank, epoch = self.layout, self.start.rank, self.start.epoch
        last = self.stage == layout.stages - 1
        after = None if last else OutLink(welcome.states[rank + layout.tensor])
        states = StatesLink(epoch, self.states if self.stage else None, after)
        receivers = [OutLink(welcome.ids[r]) for r in layout.first if r != rank]
        self.ids_link = IdsLink(epoch, self.ids, receivers if self.samples else [])
        self.states_link = states
        self.worker: ModelWorker = ModelWorker(self.config, plan)
        self.runner: Any = self.worker.runner
        self.forward = RankForward(self.worker.runner.forward, states, self.samples)
        self.worker.runner.forward = self.forward
        if not last:
            self.runner = StageRunner(self.worker.runner, self.forward, states)
            self.worker.runner = self.runner
        gc.collect()
        gc.freeze()
        self.link.send(Ready(epoch, rank, msgspec.to_builtins(self.worker.info)))

    # -- passes ----------------------------------------------------------------------------------

    def serve(self) -> None:
        """Compute batches until the planner stops the rank."""
        while True:
            message = self.link.next()
            if isinstance(message, PassPlan):
                self._compute(batch_of(message.columns))
            elif isinstance(message, LoadOnRank):
                self.link.send(self._load_adapter(message))
            elif isinstance(message, UnloadOnRank):
                self.worker.unload_adapter(message.number)
            elif isinstance(message, Stop):
                return

    def _compute(self, batch: Batch) -> None:
        epoch, failed, began = self.start.epoch, "", time.perf_counter()
        masks = _RankMasks(self.link, batch, self.samples)
        self._take_ids(batch)
        self.forward.batch = batch.id
        try:
            finish = self.worker.launch(batch, masks)
        except ValueError as error:  # the batch is invalid, on every rank of the stage
            failed = str(error)
            self.runner.drawn = None
            self.states_link.fail(batch.id, failed)
        if batch.rows:  # a batch without rows only copies pages
            self._previous = batch.id
        if not self.samples:
            return
        if batch.rows:
            self.ids_link.send(batch.id, self.runner.drawn)
        if failed:
            self.link.send(PassFailed(epoch, batch.id, failed))
        else:
            result = finish()
            if self.stage:
                waited = self.states_link.waited + masks.waited
                own = time.perf_counter() - began - waited
                result.stages = (*self.states_link.seconds, own)
            self.link.send(Outcome(epoch, result))

    def _take_ids(self, batch: Batch) -> None:
        """Give the runner the tokens that the previous batch sampled. Later stages get zeros."""
        import torch

        if self.samples:
            return
        follows = max((row.follows for row in batch.rows), default=-1)
        if self.stage == 0:
            tokens = self.ids_link.of(self._previous, wait=follows >= 0)
            self.runner.drawn = torch.tensor(tokens, dtype=torch.int32) if len(tokens) else None
        elif follows >= 0:
            self.runner.drawn = torch.zeros(follows + 1, dtype=torch.int32)
        if self.runner.drawn is not None:
            self.runner.drawn = self.runner.drawn.to(self.worker.device)

    def _load_adapter(self, message: LoadOnRank) -> LoadedOnRank:
        epoch, rank, number = self.start.epoch, self.start.rank, message.number
        try:
            facts = self.worker.load_adapter(number, message.path, message.pinned)
        except Exception as error:  # any file may be bad; the rank continues without the adapter
            known, memory = (ValueError, MemoryError, OSError), isinstance(error, MemoryError)
            told = str(error) if isinstance(error, known) else repr(error)
            return LoadedOnRank(epoch, rank, number, {}, told, memory)
        return LoadedOnRank(epoch, rank, number, msgspec.to_builtins(facts))


class _RankMasks:
    """Masks of a batch, which arrive after it; ranks that do not sample get none.

    ``waited``: seconds that ``make`` waited for the masks.
    """

    def __init__(self, link: PlannerLink, batch: Batch, samples: bool) -> None:
        self._link, self._id = link, batch.id
        self._wanted = samples and has_masks(batch)
        self._made: list[Mask] | None = None
        self.waited = 0.0

    def make(self) -> list[Mask]:
        if self._made is None:
            self._made, began = [], time.perf_counter()
            while self._wanted:
                message = self._link.wait_for(PlanMasks)
                if message.id == self._id:
                    self._made, self._wanted = message.masks, False
            self.waited = time.perf_counter() - began
        return self._made


def has_masks(batch: Batch) -> bool:
    """Return True if a sample of the batch refers to a mask by its index."""
    return any(
        isinstance(sample.mask, int)
        for row in batch.rows
        for sample in (*row.checks, row.sample)
        if sample is not None
    )


class Rendezvous:
    """Forms the ranks' process groups, through a file or a TCP store of rank 0."""

    def __init__(self, start: RankStart, layout: RankLayout, host: str) -> None:
        self._layout, self._rank, self._held = layout, start.rank, None
        self.address = f"file://{start.directory}/store" if not start.host else ""
        self._needed, self._memory = layout.tensor > 1, start.memory
        if start.host and start.rank == 0 and self._needed:
            self._held = _tcp_store(host, 0, layout.ranks, first=True)
            self.address = f"{self._held.port} {host}"
        if not start.host or host.startswith("127."):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    def join(self, address: str, plan: ModelPlan) -> Group:
        """Wait for all ranks. Return the group of the ranks that share this rank's layers."""
        group = plan.shard.group
        if not self._needed:
            return group
        import torch.distributed as dist
        from sglang.srt.parallel.groups import SharedGroup

        backend = "nccl" if plan.device.type == "cuda" else "gloo"
        count = self._layout.ranks
        if address.startswith("file:"):
            dist.init_process_group(backend, init_method=address, rank=self._rank, world_size=count)
        else:
            port, _, host = address.partition(" ")
            store = self._held or _tcp_store(host, int(port), count, first=False)
            dist.init_process_group(backend, store=store, rank=self._rank, world_size=count)
        handle = None
        for stage in range(self._layout.stages):  # torch requires every rank to make every group
            made = dist.new_group(list(self._layout.stage_ranks(stage)))
            if stage == self._layout.stage(self._rank):
                handle = made
        memory = None if plan.device.type != "cpu" or plan.torch_because else self._meeting(group)
        return SharedGroup(group.rank, group.size, handle, memory)

    def _meeting(self, group: Group) -> Meeting | None:
        """Return the shared memory of the stage's ranks, None if they have none."""
        if self._memory < 0:
            return None
        from sgl_kernel.meeting import Meeting, meeting_bytes

        size = meeting_bytes(group.size)
        os.ftruncate(self._memory, size)  # every rank sets the same size
        return Meeting(mmap(self._memory, size), group.rank, group.size)


def _tcp_store(host: str, port: int, ranks: int, first: bool) -> Any:
    """Open the store for ranks on several machines. ``first``: host it, else connect to it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(host, port, ranks, first, wait_for_workers=False)


def plan_rank(config: Config, rank: int) -> ModelPlan:
    """Return the plan of one rank's shard. Raises ValueError if the model cannot be split so."""
    from sglang.srt.parallel.groups import Group, Shard
    from sglang.srt.worker.model_loading import plan_of

    layout, counts = RankLayout.of(config.parallel), config.parallel.layer_counts
    whole = plan_of(config)
    refuse(whole, config)
    layers = None
    if layout.stages > 1:
        stages = stage_layers(whole.spec.num_layers, layout.stages, counts)
        layers = stages[layout.stage(rank)]
    group = Group(layout.within(rank), layout.tensor)
    return plan_of(config, Shard(group, layers, layout.local))


def refuse(plan: ModelPlan, config: Config) -> None:
    """Raise ValueError for settings and models that several ranks do not support."""
    stages = config.parallel.pp_size
    if config.memory.hicache_storage_dir:
        raise ValueError(
            "--hicache-storage-dir keeps the KV of one rank; leave it out, or use one rank."
        )
    if stages > 1 and config.lora.enabled:
        raise ValueError(
            f"--pp-size is {stages} and adapters span all layers; use --tp-size, or no adapters."
        )
    if stages > 1 and plan.family.multimodal:
        raise ValueError(
            f"--pp-size is {stages} and {plan.architecture} reads images; use --tp-size for it."
        )


def facts_of(plan: ModelPlan, config: Config) -> dict[str, str]:
    """Return the facts that must be equal on all ranks. Raises OSError for an unreadable file."""
    from sglang.srt.files.file_digests import model_files, sampled_bytes

    parallel, memory = config.parallel, config.memory
    weights = sha256()
    if plan.checkpoint is None:
        weights.update(f"dummy {config.model.random_seed}".encode())
    for path in model_files(plan.directory, plan.checkpoint is not None):
        weights.update(sampled_bytes(path))
    return {
        "version": __version__,
        "weights": weights.hexdigest()[:16],
        "model": sha256(repr(plan.spec).encode()).hexdigest()[:16],
        "dtype": str(plan.dtype),
        "kv_cache_dtype": str(plan.storage.kv_dtype),
        "quantization": plan.storage.quantization,
        "kernels": "torch" if plan.torch_because else "native",
        "device": plan.device.type,
        "context_length": str(plan.length),
        "page_size": str(memory.page_size),
        "layout": json.dumps(
            [parallel.tp_size, parallel.pp_size, parallel.assigned_layers, parallel.nnodes]
        ),
    }


def rank_config(config: Config, rank: int) -> Config:
    """Return the configuration of one rank, with its GPU and its share of the CPU cores."""
    parallel, model = config.parallel, config.model
    local = rank % parallel.local_ranks
    cores = len(os.sched_getaffinity(0))
    threads = model.threads or max(1, cores // parallel.local_processes)
    device = model.device
    if device in ("auto", "cuda"):
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        most = count - parallel.base_gpu_id
        if (count and most < parallel.local_ranks) or (not count and device == "cuda"):
            raise ValueError(
                f"--tp-size times --pp-size is {parallel.ranks}, {parallel.local_ranks} ranks for "
                f"this machine, which has {count} GPUs, from {parallel.base_gpu_id} on "
                f"{max(most, 0)}; use --device cpu, or fewer ranks or engines."
            )
        device = f"cuda:{parallel.base_gpu_id + local}" if count else "cpu"
    return replace(config, model=replace(model, threads=threads, device=device))


def die_with(parent: int, action: Any) -> None:
    """End with the parent. On Linux the kernel sends SIGKILL, which also ends a stopped process."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    when_orphaned(parent, action)


def _leave(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def kind_of(error: BaseException) -> str:
    """Return ``RankFailed.kind`` for an error that ends a rank."""
    if isinstance(error, MemoryError):
        return "memory"
    return "value" if isinstance(error, (ValueError, OSError)) else "lost"


def main(argument: str) -> int:
    """Run a rank. ``argument``: a RankStart as JSON. Return 0 after a Stop, 1 after an error."""
    start = msgspec.json.decode(argument, type=RankStart)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    directory = Path(start.directory)
    die_with(start.parent, partial(_leave, directory))
    config = msgspec.msgpack.decode((directory / "config").read_bytes(), type=Config)
    logs.configure(config.server.log_level, config.operations.log_format)
    if start.rank:
        logging.getLogger("sglang").setLevel(logging.WARNING)
    rank: Rank | None = None
    try:
        rank = Rank(start, config)
        rank.config = rank_config(config, start.rank)
        rank.run()
    except Exception as error:
        log.debug("rank %d ends", start.rank, exc_info=True)
        out = OutLink(start.planner)
        out.send(encode_message(RankFailed(start.epoch, start.rank, kind_of(error), _text(error))))
        finish_sending()
        return 1
    return 0


def _text(error: BaseException) -> str:
    if isinstance(error, (ValueError, MemoryError, OSError, RankError)):
        return str(error)
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    code = main(sys.argv[1])
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)
