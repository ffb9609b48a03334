"""Random histories of programs whose forwards begin with tokens that are still to be sampled,
beside ordinary requests. Each is a function of its seed, but for when its batches leave.

The calls go through sessions, the dispatcher and the engine. A reference knows every token at
once: it computes each call when it is made, so a forward that begins with another token than the
sampled one has another answer.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from helpers.desk import generate
from helpers.fake_worker import VOCAB
from helpers.silent_link import NoText
from helpers.simulation import expected
from helpers.space_desk import SpaceDesk
from helpers.space_worker import SpaceWorker, loose_reading, loose_state, sampled
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import Sample
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Failed
from sglang.srt.core.space_messages import SpaceEvent
from sglang.srt.inferlet import calls as c
from sglang.srt.inferlet.controller import Controller
from sglang.srt.inferlet.driver import CallAnswer
from sglang.srt.inferlet.inferlet_session import InferletSession
from sglang.srt.inferlet.program_limits import TRUSTED, ProgramLimits
from sglang.srt.inferlet.served import RunFollower, Served

PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 0, "frequency_penalty": 0.5, "presence_penalty": 0.25},
)
SAMPLINGS = tuple(SamplingParams(**params) for params in PARAMS)
REFUSED = -1  # expected answer of a call that is refused
LOST = -2  # of a forward that begins with the token of a call that was refused by the engine
QUEUES = 2
EMBS = 4  # embeddings of a queue


class DeskLink:
    """The client of an engine in a test: events come after what runs now."""

    def __init__(self, desk: SpaceDesk) -> None:
        self._desk = desk

    def new_id(self) -> int:
        return next(self._desk._ids)

    def send(self, *verbs: Any) -> None:
        self._desk.send(*verbs)

    def listen(self, space: int, listener: Callable[[SpaceEvent], None]) -> None:
        self._desk.programs[space] = _Listening(listener)  # type: ignore[assignment]

    def unlisten(self, space: int) -> None:
        self._desk.programs[space] = _Listening(lambda event: None)  # type: ignore[assignment]


@dataclass
class _Listening:
    listener: Callable[[SpaceEvent], None]

    def take_event(self, event: SpaceEvent) -> None:
        asyncio.get_running_loop().call_soon(self.listener, event)


@dataclass
class Held:
    """Content of an embedding: a token at a position. ``future``: a forward of ``queue`` samples
    it; ``LOST``: that forward was refused."""

    token: int
    position: int
    future: bool = False
    queue: int = 0


@dataclass
class Player:
    """A program, and what its calls mean.

    Attributes:
        states: KV by page, of each queue.
        held: what its embeddings have; None of an empty one.
        wanted: expected answers, by call.
        spoiled: pages or passes were lost; nothing is expected any more.
    """

    session: InferletSession
    answers: dict[int, CallAnswer] = field(default_factory=dict)
    states: list[dict[int, int]] = field(default_factory=lambda: [{} for _ in range(QUEUES)])
    fresh: list[list[int]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])
    held: dict[int, Held | None] = field(default_factory=dict)
    wanted: dict[int, int] = field(default_factory=dict)
    pages: int = 0
    calls: int = 0
    spoiled: bool = False

    def call(self, kind: type[c.ProgramCall], **fields: Any) -> int:
        self.calls += 1
        self.session.handle(kind(id=self.calls, **fields))
        return self.calls


class FutureHistory:
    """One history: an engine, a few programs and a few requests."""

    def __init__(self, seed: int) -> None:
        self.r = r = random.Random(seed)
        self.seen: Counter[str] = Counter()
        worker = SpaceWorker(1)
        if r.random() < 0.2:
            worker.fail_at = {r.randint(2, 30)}
        if r.random() < 0.2:
            worker.break_at, worker.break_row = {r.randint(2, 30)}, r.choice([0, -1])
        self.lossy = bool(worker.fail_at or worker.break_at)
        self.desk = SpaceDesk(
            r.choice([64, 400, 400]), worker=worker, depth=r.choice([1, 2, 2, 3]),
            chunked_prefill_size=r.choice([4, 16, 64]),
        )  # fmt: skip
        self.players: list[Player] = []
        self.asked: dict[int, tuple[list[int], Any]] = {}
        self.errors: list[BaseException] = []

    def run(self) -> Counter[str]:
        asyncio.run(self._run())
        self.seen["rows that follow"] += self.desk.worker.followed
        self.seen["spoiled programs"] += sum(player.spoiled for player in self.players)
        return self.seen

    async def _run(self) -> None:
        r, desk = self.r, self.desk
        asyncio.get_running_loop().set_exception_handler(self._note)
        served = Served(DeskLink(desk), desk.engine.info, NoText())
        controller = Controller(served, r.choice(["adaptive", "cohort", "cohort", "eager"]))
        for _ in range(r.randint(1, 4)):
            self._join(controller)
        for _ in range(r.randint(20, 70)):
            self._act()
            await self._rest(r.choice([0, 0, 1, 4]))
            if r.random() < 0.5 and desk.engine.busy:
                desk.step()
                desk.engine.store.check()
        await self._finish()

    def _note(self, loop: Any, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or RuntimeError(str(context["message"])))

    async def _rest(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        if self.errors:
            raise self.errors[0]

    def _join(self, controller: Controller) -> None:
        session = controller.open([], TRUSTED, ProgramLimits(), RunFollower())
        player = Player(session)
        session.deliver = lambda answer: self._take(player, answer)
        self.players.append(player)
        for queue in range(QUEUES):
            player.call(c.CreateQueueCall, queue=queue)
            embs = range(queue * EMBS, (queue + 1) * EMBS)
            player.call(c.AllocEmbCall, queue=queue, embs=list(embs))
            player.held.update(dict.fromkeys(embs))

    def _take(self, player: Player, answer: CallAnswer) -> None:
        assert answer.id not in player.answers, "a call is answered twice"
        player.answers[answer.id] = answer
        want = player.wanted.pop(answer.id)
        error = answer.error
        if error is not None and error.code != "invalid" and "sampled none" not in error.message:
            player.spoiled = True
        if player.spoiled or player.session.space.end is not None:
            player.spoiled = True
            return
        if want in (REFUSED, LOST):
            assert error is not None, "a wrong call is answered"
            own = f"call {answer.id}, " in error.message or "temperature" in error.message
            assert own if want == REFUSED else "sampled none" in error.message
            self.seen["refusals" if want == REFUSED else "refusals for an earlier one"] += 1
            return
        assert answer.error is None, answer.error
        assert answer.value == want, "another token than by the definition"
        self.seen["tokens"] += 1

    # -- calls -----------------------------------------------------------------------------------

    def _act(self) -> None:
        r = self.r
        if r.random() < 0.08:
            prompt = [r.randrange(VOCAB) for _ in range(r.randint(1, 16))]
            goal = generate(r.randint(1, 12))
            self.asked[self.desk.ask(prompt, goal)] = (prompt, goal)
            return
        player, queue = r.choice(self.players), r.randrange(QUEUES)
        actions: list[Callable[[Player, int], object]] = [
            self._alloc, self._embed, self._forward, self._loop, self._free, self._renew,
            self._wrong,
        ]  # fmt: skip
        action = r.choices(actions, [12, 10, 20, 25, 4, 4, 10])[0]
        action(player, queue)

    def _alloc(self, player: Player, queue: int) -> None:
        pages = list(range(player.pages, player.pages + self.r.randint(1, 8)))
        player.pages += len(pages)
        player.call(c.AllocKvpageCall, queue=queue, pages=pages)
        player.fresh[queue] += pages

    def _free(self, player: Player, queue: int) -> None:
        known = sorted(player.states[queue])
        pages = self.r.sample(known, min(len(known), self.r.randint(1, 4)))
        player.call(c.DeallocKvpageCall, queue=queue, pages=pages)
        for page in pages:
            del player.states[queue][page]

    def _embed(self, player: Player, queue: int, emb: int | None = None) -> int:
        """Also over a token that is still to be sampled."""
        emb = self._emb(queue) if emb is None else emb
        token, position = self.r.randrange(VOCAB), self.r.randrange(40)
        player.call(c.EmbedTxtCall, queue=queue, tokens=[token], positions=[position], embs=[emb])
        player.held[emb] = Held(token, position)
        return emb

    def _emb(self, queue: int) -> int:
        return queue * EMBS + self.r.randrange(EMBS)

    def _renew(self, player: Player, queue: int) -> None:
        """Free an embedding and make it again: it is empty."""
        emb = self._emb(queue)
        player.call(c.DeallocEmbCall, queue=queue, embs=[emb])
        player.call(c.AllocEmbCall, queue=queue, embs=[emb])
        player.held[emb] = None

    def _loop(self, player: Player, queue: int) -> None:
        """A straight loop, over one embedding or in turn over two."""
        emb, other = self._embed(player, queue), self._emb(queue)
        for _ in range(self.r.randint(2, 6)):
            self._forward(player, queue, emb, other)
            emb, other = other, emb
            if len(player.fresh[queue]) == 0:
                self._alloc(player, queue)
        self.seen["loops"] += 1

    def _forward(
        self, player: Player, queue: int, emb: int | None = None, future: int | None = None
    ) -> None:
        r = self.r
        if emb is None:
            emb = self._emb(queue if r.random() < 0.7 else r.randrange(QUEUES))
        if future is None and r.random() < 0.5:
            future = self._emb(queue)
        iemb = [emb]
        while r.random() < 0.2 and len(iemb) < EMBS:
            iemb.append(self._embed(player, queue))
        known = player.states[queue]
        ikv = r.sample(sorted(known), min(len(known), r.randint(0, 8)))
        okv: list[int] = []
        if len(player.fresh[queue]) >= len(iemb) and r.random() < 0.8:
            okv, player.fresh[queue] = (
                player.fresh[queue][: len(iemb)], player.fresh[queue][len(iemb) :]
            )  # fmt: skip
        which = r.randrange(len(PARAMS))
        history = [r.randrange(VOCAB) for _ in range(r.choice([0, 2]))]
        number, uniform = player.calls + 1, r.random()
        found = [player.held[one] for one in iemb]
        token = self._token(player, queue, found, ikv, okv, which, uniform, history)
        player.wanted[number] = token
        if token == REFUSED:
            player.fresh[queue] += okv
        if future is not None and token == REFUSED:
            player.held[future] = None
        elif future is not None and token == LOST:
            player.held[future] = Held(LOST, 0, True, queue)
        elif future is not None:
            last = found[-1]
            assert last is not None
            player.held[future] = Held(token, last.position + 1, True, queue)
        player.call(
            c.ForwardWithSamplingCall, queue=queue, ikv=ikv, iemb=iemb, okv=okv, uniform=uniform,
            params=PARAMS[which], history=history, future=future,
        )  # fmt: skip

    def _token(
        self, player: Player, queue: int, found: list[Held | None], ikv: list[int], okv: list[int],
        which: int, uniform: float, history: list[int],
    ) -> int:  # fmt: skip
        """The token of a forward, whose states are kept; REFUSED where it may not be."""
        if any(one is None or (one.future and i) for i, one in enumerate(found)):
            return REFUSED
        first, states = found[0], player.states[queue]
        assert first is not None
        if first.future and first.queue != queue:
            return REFUSED
        if first.token == LOST:
            return LOST
        if first.future:
            history = [*history, first.token]
            self.seen["futures read"] += 1
        seen = [states[page] for page in ikv]
        for one in found:
            assert one is not None
            seen.append(loose_state(seen, one.token, one.position))
        states.update(zip(okv, seen[len(ikv) :]))
        sample = Sample(SAMPLINGS[which], uniform, ints(history))
        return sampled(loose_reading(seen), sample)

    def _wrong(self, player: Player, queue: int) -> None:
        """A call that is refused; the embedding that it names for its token is empty then."""
        emb, future = self._embed(player, queue), self._emb(queue)
        fields: dict[str, Any] = {"iemb": [emb], "future": future}
        fields |= self.r.choice(
            [{"params": {"temperature": -1}}, {"ikv": [9999]}, {"iemb": [9999]}, {"future": 9999},
             {"oemb": [emb], "future": emb}, {"iemb": []}],
        )  # fmt: skip
        player.wanted[player.calls + 1] = REFUSED
        player.call(c.ForwardWithSamplingCall, queue=queue, **fields)
        if "params" in fields:  # the engine's to refuse
            player.held[future] = Held(LOST, 0, True, queue)
        elif fields["future"] in player.held:
            player.held[fields["future"]] = None
        if self.r.random() < 0.5:
            self._forward(player, queue, future, None)

    # -- the end ---------------------------------------------------------------------------------

    async def _finish(self) -> None:
        desk = self.desk
        for _ in range(400):
            await self._rest(3)
            if desk.engine.busy:
                desk.step()
            elif any(player.wanted for player in self.players):
                await asyncio.sleep(0.0005)  # a policy waits for a moment
            else:
                break
        for player in self.players:
            assert not player.wanted, "a call has no answer"
            assert not player.session.space._expected
            player.session.stop("")
        await self._rest(3)
        desk.run()
        for request, (prompt, goal) in self.asked.items():
            end = desk.end(request)
            if isinstance(end, Failed):
                assert self.lossy
                continue
            assert desk.tokens(request) == expected(prompt, goal.sampling).tokens
        assert desk.engine.store.holder is None or desk.engine.store.holder.held == 0
        desk.finish()
