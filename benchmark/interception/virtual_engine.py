"""The real engine in virtual time: its worker computes nothing and says how long it would take.

A pass of q tokens takes ``10 + 0.0463 q`` ms (the paper's fit for GPT-J 6B on an A100), or as long
as its copies where these take longer; the link to host memory carries 25 tokens a ms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sglang.srt.config import ScheduleConfig
from sglang.srt.core.batch import Batch, Row, RowOutput, StepResult
from sglang.srt.core.clock import ManualClock
from sglang.srt.core.messages import Event
from sglang.srt.core.workers import NO_MASKS, Finish, Masks
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline
from sglang.srt.engine.info import EngineInfo
from sglang.srt.interception.park_policies import POLICIES

from benchmark.interception.techniques import TECHNIQUES

TOKEN = 5  # each sampled token
BIG = 1 << 30
IDLE = 3  # steps in a row that may compute nothing: one retracts requests and plans no rows


@dataclass(frozen=True)
class Machine:
    """The machine that is simulated.

    Attributes:
        base_ms, token_ms: milliseconds of a pass, and of each of its tokens.
        link: tokens a millisecond whose KV travels between the device and host memory.
        capacity, host: tokens of KV on the device, and in host memory.
        chunk: prompt tokens a pass, at which the device is saturated.
    """

    base_ms: float = 10.0
    token_ms: float = 0.0463
    link: float = 25.0
    capacity: int = 48_000
    host: int = 400_000
    chunk: int = 512


@dataclass(frozen=True)
class Arm:
    """A way of treating KV at a call.

    Attributes:
        share: KV stays in the radix tree when a request ends.
        chunked: prompts are computed in chunks of ``Machine.chunk``.
        line: a session that resumes does not queue as a newcomer.
        host: evicted KV is kept in host memory.
        parking: what becomes of the KV of contexts that wait for a call: a policy of the engine, or
            one of ``TECHNIQUES``.
        hint: factor by which the client's hints of a call's seconds are wrong, or right, 1; 0: the
            client gives none.
        oracle: the hints are believed, whatever calls have taken before.
        closes: the client closes a context whose call will never return.
    """

    policy: str = "fcfs"
    share: bool = True
    chunked: bool = True
    line: bool = False
    host: bool = False
    parking: str = "none"
    hint: float = 0.0
    oracle: bool = False
    closes: bool = False


PRICED = Arm("lpm", line=True, host=True, parking="priced")
ARMS = {
    "discard": Arm(share=False, chunked=False),
    "improved-discard": Arm(share=False, chunked=False, line=True),
    "preserve": Arm(line=True, parking="preserve"),
    "swap": Arm(line=True, host=True, parking="swap"),
    "heuristic": Arm(line=True, host=True, parking="heuristic"),
    "min-waste": Arm(line=True, host=True, parking="min-waste"),
    "ttl": Arm(line=True, host=True, parking="ttl"),
    "radix": Arm("lpm"),
    "radix + line": Arm("lpm", line=True),
    "tiers": Arm("lpm", line=True, host=True),
    "eager": replace(PRICED, parking="eager"),
    "priced": PRICED,
    "priced oracle": replace(PRICED, hint=1.0, oracle=True),
    "priced hints / 10": replace(PRICED, hint=0.1),
    "priced hints x 10": replace(PRICED, hint=10.0),
}
# The arm that ``priced`` is compared with where some calls never return.
CLOSES = {"priced closes": replace(PRICED, closes=True)}
# One technique after the other: InferCept's in the order of its section 5.2, then those here.
STEPS = {
    "discard": ARMS["discard"],
    "+ line": ARMS["improved-discard"],
    "+ chunks": Arm(share=False, line=True),
    "+ swap in budget": Arm(line=True, host=True, parking="swap in budget"),
    "+ preserve short": Arm(line=True, host=True, parking="preserve short"),
    "min-waste": ARMS["min-waste"],
    "radix": ARMS["radix"],
    "radix + line": ARMS["radix + line"],
    "+ host memory": ARMS["tiers"],
    "+ claims": replace(PRICED, parking="claims"),
    "priced": PRICED,
}
EVERY_ARM = STEPS | CLOSES | ARMS


class VirtualWorker:
    """Samples ``TOKEN`` everywhere. Adds up what the passes would have taken.

    Args:
        page_size: tokens a page.

    Attributes:
        ms: of the last pass.
        forward_ms, stall_ms: of all passes; of these, what copies took beyond the pass.
        computed, stored, loaded: tokens.
        again: of the computed ones, those that were computed for the same context before.
        last_again: of these, those of the last pass.
    """

    disk = None

    def __init__(self, machine: Machine, page_size: int = 1) -> None:
        self.machine, self._page_size = machine, page_size
        self.ms = self.forward_ms = self.stall_ms = 0.0
        self.computed = self.stored = self.loaded = self.again = self.last_again = 0
        self._reached: dict[int, int] = {}  # tokens computed so far, by context

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        count, stores, loads = batch.num_tokens, 0, 0
        if batch.moves is not None:
            stores = self._page_size * len(batch.moves.stores)
            loads = self._page_size * len(batch.moves.loads)
        forward = self.machine.base_ms + self.machine.token_ms * count if count else 0.0
        self.ms = max(forward, (stores + loads) / self.machine.link)
        self.forward_ms += forward
        self.stall_ms += self.ms - forward
        self.computed += count
        self.last_again = sum(self._repeated(row) for row in batch.rows)
        self.again += self.last_again
        self.stored += stores
        self.loaded += loads
        result = StepResult(
            batch.id, [RowOutput(token=TOKEN) for _ in batch.rows], seconds=forward / 1e3,
            copy_seconds=(stores + loads) / self.machine.link / 1e3,
        )  # fmt: skip
        return lambda: result

    def _repeated(self, row: Row) -> int:
        """Tokens of a row that were computed before."""
        end, before = row.start + len(row.tokens), self._reached.get(row.context, 0)
        self._reached[row.context] = max(before, end)
        return max(min(before, end) - row.start, 0)

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, object]:
        raise ValueError("no adapters in virtual time")

    def unload_adapter(self, number: int) -> None: ...


class VirtualEngine:
    """An engine whose time is that of its passes.

    Args:
        worker: in place of a plain one.
        settings: further ones of the schedule.

    Attributes:
        core: the engine; worker: its worker; clock: its time.
    """

    def __init__(
        self, arm: Arm, machine: Machine, page_size: int = 1, worker: VirtualWorker | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.worker, self.clock = worker or VirtualWorker(machine, page_size), ManualClock()
        self._idle = 0
        schedule = ScheduleConfig(
            schedule_policy=arm.policy,
            chunked_prefill_size=machine.chunk if arm.chunked else -1,
            max_queued_requests=BIG,
            park_policy=arm.parking if arm.parking in POLICIES else "preserve", **settings,
        )  # fmt: skip
        info = EngineInfo(
            model_path="", architecture="", dtype="", device="", vocab_size=BIG,
            context_length=1 << 20, capacity=machine.capacity, page_size=page_size, eos=(),
            max_running_requests=256, max_queued_requests=BIG,
            host_capacity=machine.host if arm.host else 0,
        )  # fmt: skip
        self.core = EngineCore(
            Inline(self.worker), info, schedule, [b"."], share=arm.share, clock=self.clock
        )
        if arm.parking in TECHNIQUES:
            self.core.planner.parked.policy = TECHNIQUES[arm.parking]

    def step(self) -> list[Event]:
        """Run one step, and let the time of its pass go by. Return its events. Raises RuntimeError
        where the engine is busy and does nothing."""
        self.worker.ms = 0.0
        events = self.core.step()
        self.clock.advance(self.worker.ms / 1e3)
        self._idle = 0 if self.worker.ms or events else self._idle + 1
        if self._idle > IDLE:
            raise RuntimeError("the engine is busy and does nothing")
        return events
