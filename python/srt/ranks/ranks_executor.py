"""Ranks: an executor whose worker is several processes. One frame sends a batch to all ranks; the
rank that samples returns the outputs."""

from __future__ import annotations

import logging
import queue
import threading
import time
from pathlib import Path
from typing import Any

from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.device_errors import DeviceLost
from sglang.srt.core.disk_jobs import Disk
from sglang.srt.core.workers import NO_MASKS, Masks
from sglang.srt.ranks.batch_frames import columns_of
from sglang.srt.ranks.rank_group import RankGroup, check_equal
from sglang.srt.ranks.rank_messages import (
    Hello,
    LoadedOnRank,
    LoadOnRank,
    Offer,
    Outcome,
    PassFailed,
    PassPlan,
    PlanMasks,
    RankMessage,
    Ready,
    Smallest,
    Stop,
    UnloadOnRank,
    Welcome,
)

log = logging.getLogger("sglang.srt.ranks")
TENSOR_DEPTH = 2  # one batch is computed, one waits


class Ranks:
    """Implements ``engine.executor.Executor``.

    Attributes:
        facts: ``ModelWorker.info`` of the rank that samples.
    """

    disk: Disk | None = None

    def __init__(self, config: Config, directory: Path | None = None) -> None:
        """Start the ranks and wait until each has loaded its part of the model. ``directory``: see
        ``RankGroup``. Raises ValueError, MemoryError, OSError, RuntimeError."""
        stages, number = config.parallel.pp_size, config.parallel.node_rank
        if number:
            raise ValueError(
                f"--node-rank is {number} and only node 0 answers requests; use sglang serve "
                "on this machine."
            )
        self.depth = TENSOR_DEPTH if stages == 1 else stages + 1
        self.group = group = RankGroup(config, directory)
        self.facts: dict[str, Any] = {}
        self._results: queue.SimpleQueue[Outcome | PassFailed | DeviceLost] = queue.SimpleQueue()
        self._adapters: queue.SimpleQueue[LoadedOnRank | DeviceLost] = queue.SimpleQueue()
        self._loading = threading.Lock()
        try:
            self._start(time.monotonic() + config.parallel.dist_timeout)
        except BaseException:
            group.close()
            raise

    def _start(self, deadline: float) -> None:
        group, layout = self.group, self.group.layout
        hellos: dict[int, Hello] = {}
        while len(hellos) < layout.ranks:
            came = group.take((Hello,), deadline, self._absent(hellos))
            if isinstance(came, Hello):
                hellos[came.rank] = came
        ordered = [hellos[rank] for rank in range(layout.ranks)]
        check_equal(ordered)
        for hello in ordered:
            group.connect(hello.rank, hello.inbox)
        group.send_all(
            Welcome(
                group.epoch, [h.ids for h in ordered], [h.states for h in ordered],
                ordered[0].store,
            )
        )  # fmt: skip
        ready: dict[int, Ready] = {}
        offers: dict[int, int] = {}
        while len(ready) < layout.ranks:
            waiting = [r for r in range(layout.ranks) if r not in (offers or ready)]
            absent = f"rank {waiting[0]} has not loaded its weights"
            message = group.take((Offer, Ready), deadline, absent)
            if isinstance(message, Ready):
                ready[message.rank] = message
            elif isinstance(message, Offer):
                offers[message.rank] = message.number
                if len(offers) == layout.ranks:
                    group.send_all(Smallest(group.epoch, min(offers.values())))
                    offers = {}
        self.facts = ready[layout.sampling].facts
        group.takes = self._take
        if group.lost:
            raise DeviceLost(group.lost)
        group.forget_directory()
        log.info("%d ranks are ready: %d stages of %d", layout.ranks, layout.stages, layout.tensor)

    def _absent(self, hellos: dict[int, Hello]) -> str:
        """Return the message for a start that times out before all ranks have reported."""
        group, layout = self.group, self.group.layout
        if not group.missing:
            return f"rank {min(set(range(layout.ranks)) - hellos.keys())} did not report"
        node = group.missing[0]
        return (
            f"node {node} has not come: start it with --node-rank {node} --nnodes {layout.nodes} "
            f"--dist-init-addr {group.config.parallel.dist_init_addr}; it did not report"
        )

    def _take(self, message: RankMessage) -> bool:
        """Put a message into its queue; False for other kinds. Called by the group's thread."""
        if isinstance(message, (Outcome, PassFailed)):
            self._results.put(message)
        elif isinstance(message, LoadedOnRank):
            self._adapters.put(message)
        elif isinstance(message, Stop):  # from the group itself, which is lost
            self._results.put(DeviceLost(self.group.lost))
            self._adapters.put(DeviceLost(self.group.lost))
        else:
            return False
        return True

    @property
    def lost(self) -> str:
        return self.group.lost

    # -- passes ----------------------------------------------------------------------------------

    def submit(self, batch: Batch, masks: Masks = NO_MASKS) -> None:
        group = self.group
        group.send_all(PassPlan(group.epoch, columns_of(batch)))
        made = list(masks.make())
        if made:
            group.send(group.layout.sampling, PlanMasks(group.epoch, batch.id, made))

    def result(self) -> StepResult:
        item = self._results.get()
        if isinstance(item, DeviceLost):
            self._results.put(item)  # for every later call
            raise DeviceLost(str(item))
        if isinstance(item, PassFailed):
            raise ValueError(item.error)
        return item.result

    # -- adapters --------------------------------------------------------------------------------

    def load_adapter(self, number: int, path: str, pinned: bool = False) -> dict[str, Any]:
        """Load an adapter on all ranks. If a rank fails, unload it on all, and raise the error."""
        group = self.group
        with self._loading:
            group.send_all(LoadOnRank(group.epoch, number, path, pinned))
            answers: list[LoadedOnRank] = []
            while len(answers) < group.layout.ranks:
                answer = self._adapters.get()
                if isinstance(answer, DeviceLost):
                    self._adapters.put(answer)
                    raise ValueError(f"the adapter was not loaded: {answer}")
                if answer.number == number:
                    answers.append(answer)
        failed = [answer for answer in answers if answer.error]
        if not failed:
            return dict(min(answers, key=lambda a: a.rank).facts)
        self.unload_adapter(number)
        raise (MemoryError if failed[0].memory else ValueError)(failed[0].error)

    def unload_adapter(self, number: int) -> None:
        self.group.send_all(UnloadOnRank(self.group.epoch, number))

    def close(self) -> None:
        self.group.close()
