"""Fronts: the servers that use one engine, as sessions. This module turns frames into verbs and
events into frames; it has no socket and no clock.

serving   the session's HELLO was answered: its verbs wait their turn, and its events are sent to it
(over)    the front left, its connection ended, or its frames were malformed; ``verbs`` closes its
contexts

A session's contexts have the session's number (``front_numbers``), so a front can neither name nor
end another front's contexts. All fronts share the engine's cache (by namespace), its adapters, and
a pause. A pause lasts until every front that requested it has continued or is gone.

Verbs are passed on by deficit round robin (Shreedhar and Varghese 1995) over the costs of
``engine/loop.VerbCosts``. At most as many are passed on at once as a step of the engine may cost.
So however much a front sends, it delays another front's verbs by only a step or two.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import msgspec
from sglang.srt.core.context import Context
from sglang.srt.core.messages import (
    Advance,
    Close,
    Control,
    Event,
    Failed,
    ForkContext,
    Open,
    Reply,
    Verb,
    encode,
)
from sglang.srt.core.space_messages import CloseSpace, OpenSpace, SpaceEnded
from sglang.srt.core.work import STEP_VERBS
from sglang.srt.engine.loop import VerbCosts
from sglang.srt.remote.front_numbers import (
    MAX_SESSIONS,
    OWN,
    given_back,
    session_of,
    session_of_event,
)
from sglang.srt.remote.handshake import EngineFacts, EngineWelcome, FrontHello, mismatch, refusal
from sglang.srt.remote.remote_frames import (
    PROTOCOL,
    FrameError,
    FrameHeader,
    FrameOrder,
    Kind,
    body_of,
    header_of,
    packed,
)
from sglang.srt.remote.verb_queue import VerbQueue

log = logging.getLogger("sglang.srt.remote")
QUANTUM = STEP_VERBS // 8  # cost of the verbs that a front may have in a turn
MAX_OPENED = STEP_VERBS // 64 + 1  # contexts that are opened in a step, by their costs
PAUSES = ("pause", "retract")


class FrontLimits(NamedTuple):
    """Limits on fronts."""

    fronts: int = 16
    contexts: int = 65536  # contexts that one front may hold


@dataclass
class FrontCounts:
    """Counters since the start.

    Attributes:
        front_sessions: sessions that have begun.
        refused_fronts: fronts that were refused: too many, or another model, vocabulary or
            protocol.
        refused_strangers: connections that ended before a session, because of their keys or bytes.
        dropped_frames: frames of no session, of another session, or that came twice.
        broken_sessions: sessions that ended because frames were missing or malformed.
        lost_fronts: sessions that ended with their connection.
        closed_contexts: contexts that were closed because their front was gone.
        denied_contexts: contexts beyond the limit.
    """

    front_sessions: int = 0
    refused_fronts: int = 0
    refused_strangers: int = 0
    dropped_frames: int = 0
    broken_sessions: int = 0
    lost_fronts: int = 0
    closed_contexts: int = 0
    denied_contexts: int = 0


@dataclass(eq=False)
class Front:
    """A front's session.

    Attributes:
        number: number of the session, unique in the engine's life.
        identity: identity of its connection.
        greeting: number that the front chose for its HELLO.
        sent: number of frames sent to it.
        opened: upper bound of the contexts that it holds; counted exactly when it reaches the
            limit.
        denied: contexts that it opened beyond the limit.
        spaces: its open spaces.
    """

    number: int
    identity: bytes
    name: str
    greeting: int
    order: FrameOrder
    queue: VerbQueue
    sent: int = 0
    opened: int = 0
    denied: set[int] = field(default_factory=set)
    spaces: set[int] = field(default_factory=set)


class Fronts:
    """All sessions of an engine.

    Args:
        facts: facts about the engine.
        contexts: the engine's contexts; they are read while the engine handles no verb.
        boot: upper bits of all epochs; they differ from those of an earlier engine.

    Attributes:
        outbox: frames to send, each with the identity of its connection.
    """

    def __init__(
        self,
        facts: EngineFacts,
        contexts: Mapping[int, Context],
        limits: FrontLimits,
        boot: int,
    ) -> None:
        self.facts, self._contexts, self._limits, self._boot = facts, contexts, limits, boot
        self.counts = FrontCounts()
        self.outbox: list[tuple[bytes, bytes]] = []
        self._fronts: dict[bytes, Front] = {}
        self._over: dict[int, Front] = {}  # sessions whose contexts and spaces are to be closed
        self._paused: set[int] = set()  # sessions that have paused the engine
        self._turns: deque[Front] = deque()

    @property
    def count(self) -> int:
        """Return the number of sessions now."""
        return len(self._fronts)

    @property
    def waiting(self) -> bool:
        """Return whether the engine has verbs to handle."""
        return bool(self._over) or any(front.queue for front in self._turns)

    # -- frames in -------------------------------------------------------------------------------

    def take(self, identity: bytes, frame: bytes, now: float) -> None:
        """Handle any frame from a connection. ``now``: seconds on the monotonic clock."""
        try:
            header = header_of(frame)
        except FrameError:
            self.counts.dropped_frames += 1
            return
        if header.kind is Kind.HELLO:
            return self._greet(identity, header, frame)
        front = self._fronts.get(identity)
        if front is None or header.protocol != PROTOCOL:
            self.counts.dropped_frames += 1
            return
        try:
            if not front.order.accepts(header):
                self.counts.dropped_frames += 1
            elif header.kind is Kind.VERBS:
                front.queue.put(body_of(frame), now - header.sent)
            elif header.kind is Kind.LEAVE:
                self._end(front)
                log.info("front %s has left", front.name)
        except FrameError as error:
            self._break(front, error)

    def _greet(self, identity: bytes, header: FrameHeader, frame: bytes) -> None:
        front = self._fronts.get(identity)
        if front is not None and front.greeting == header.epoch:
            self.counts.dropped_frames += 1  # the same HELLO once more
            return
        if front is not None:
            self._end(front)
        name, reason = self._refusal(header, frame)
        if reason:
            self.counts.refused_fronts += 1
            log.error("front %s is refused: %s", name, reason)
            self.outbox.append((identity, packed(Kind.REFUSED, header.epoch, 0, reason.encode())))
            return
        self.counts.front_sessions += 1
        number = self.counts.front_sessions
        order = FrameOrder(self._boot << 24 | number)
        front = Front(number, identity, name, header.epoch, order, VerbQueue(number))
        self._fronts[identity] = front
        self._turns.append(front)
        welcome = msgspec.msgpack.encode(EngineWelcome(epoch=order.epoch, facts=self.facts))
        self.outbox.append((identity, packed(Kind.WELCOME, header.epoch, 0, welcome)))
        log.info("front %s is served (%d of %d)", name, self.count, self._limits.fronts)

    def _refusal(self, header: FrameHeader, frame: bytes) -> tuple[str, str]:
        """Return the name of a front that sent HELLO, and the reason why it is refused, "" if it is
        accepted."""
        try:
            hello = msgspec.msgpack.decode(body_of(frame), type=FrontHello)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            hello = None
            reason = f"its HELLO cannot be read ({error}); use one version of sglang"
        if header.protocol != PROTOCOL or hello is None:
            name = "" if hello is None else hello.name[:100]
            return name, mismatch(header.protocol, self.facts.messages, "") or reason
        if different := mismatch(header.protocol, hello.messages, hello.version):
            return hello.name[:100], different
        reason = refusal(self.facts, hello.expected)
        if not reason and self.count >= self._limits.fronts:
            reason = f"{self.count} servers use this engine, and as many may (--max-fronts)"
        if not reason and self.counts.front_sessions >= MAX_SESSIONS:
            reason = f"the engine has had {MAX_SESSIONS} sessions; start it again"
        return hello.name[:100], reason

    # -- verbs -----------------------------------------------------------------------------------

    def verbs(self) -> list[Verb]:
        """Return verbs for the engine's next step. It must have handled all earlier ones."""
        found = self._closings()
        self._count_contexts()
        costs, total, closed = VerbCosts(self._contexts), 0, set[int]()
        while total < STEP_VERBS and any(front.queue for front in self._turns):
            front = self._turns[0]
            self._turns.rotate(-1)
            queue = front.queue
            queue.credit = queue.credit + QUANTUM if queue else 0
            while queue and queue.credit > 0 and total < STEP_VERBS:
                try:
                    verb = queue.pop()
                    allowed = verb is not None and self._may(front, verb, closed)
                except FrameError as error:
                    self._break(front, error)
                    break
                if verb is not None and allowed:
                    cost = costs.of(verb)
                    queue.credit -= cost
                    total += cost
                    found.append(verb)
        return found

    def _closings(self) -> list[Verb]:
        """Return verbs that end the contexts, spaces and pauses of sessions that are over."""
        if not self._over:
            return []
        found: list[Verb] = [Close(n) for n in self._contexts if session_of(n) in self._over]
        self.counts.closed_contexts += len(found)
        if self._paused and self._paused <= self._over.keys():
            found.append(Control(0, "continue"))  # session 0 is no front: its Reply goes nowhere
        self._paused -= self._over.keys()
        found += [CloseSpace(space) for front in self._over.values() for space in front.spaces]
        self._over.clear()
        return found

    def _may(self, front: Front, verb: Verb, closed: set[int]) -> bool:
        """Return whether a verb may go to the engine. A verb that may not is answered here.
        ``closed``: contexts that verbs of this step close."""
        if isinstance(verb, Open | ForkContext):
            return self._may_open(
                front, verb.child if isinstance(verb, ForkContext) else verb.context
            )
        if isinstance(verb, Close):
            front.denied.discard(verb.context)
            if verb.context in self._contexts and verb.context not in closed:
                front.opened -= 1
                closed.add(verb.context)
        elif isinstance(verb, OpenSpace):
            front.spaces.add(verb.space)
        elif isinstance(verb, CloseSpace):
            front.spaces.discard(verb.space)
        elif isinstance(verb, Advance) and verb.context in front.denied:
            text = (
                f"this server holds {self._limits.contexts} contexts in the engine, and no more "
                "may be (--max-contexts-per-front); try again later"
            )
            self._say(front, [Failed(verb.request & OWN, "busy", text)])
            return False
        elif isinstance(verb, Control) and verb.op in PAUSES:
            self._paused.add(front.number)
        elif isinstance(verb, Control) and verb.op == "continue":
            self._paused.discard(front.number)
            if others := len(self._paused):
                text = f"{others} other servers have paused the engine; it waits for them too"
                self._say(front, [Reply(verb.id & OWN, False, text)])
                return False
        return True

    def _may_open(self, front: Front, number: int) -> bool:
        """Return whether a front may open one more context. Raises FrameError if a front repeatedly
        opens denied contexts."""
        if front.opened < self._limits.contexts:
            front.opened += 1
            return True
        self.counts.denied_contexts += 1
        front.denied.add(number)
        if len(front.denied) > self._limits.contexts:
            raise FrameError(f"{len(front.denied)} contexts were opened beyond the limit")
        return False

    def _count_contexts(self) -> None:
        """Count the contexts that a front holds, if its next verbs may reach the limit. Contexts
        also end with their requests, so the estimate may be too high."""
        for front in self._turns:
            if front.queue and front.opened + MAX_OPENED > self._limits.contexts:
                front.opened = sum(session_of(n) == front.number for n in self._contexts)

    # -- frames out ------------------------------------------------------------------------------

    def events(self, events: Sequence[Event]) -> None:
        """Put the engine's events into ``outbox``. Those of sessions that are over are dropped."""
        by_number = {front.number: front for front in self._turns}
        sorted_out: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            number = session_of_event(event)
            if number in by_number:
                if isinstance(event, SpaceEnded):
                    by_number[number].spaces.discard(event.space)
                if isinstance(event, Reply):
                    event.data = self._shown(event.data, number)
                sorted_out[number].append(given_back(event))
        for number, own in sorted_out.items():
            self._say(by_number[number], own)

    def _shown(self, data: dict[str, Any], number: int) -> dict[str, Any]:
        """Return the data of a Reply without the requests and contexts of other fronts, and with
        counts of the fronts in the engine's statistics."""
        if "passes" in data:
            return {**data, "fronts": self.count, **asdict(self.counts)}
        if "tree" not in data:
            return data
        own = {
            name: [_renumbered(item) for item in data[name]
                   if session_of(item.get("context", item.get("id", 0))) == number]
            for name in ("running", "waiting", "parked")
        }  # fmt: skip
        return {**data, **own}

    def beat(self) -> None:
        """Send a heartbeat to every front. A failed send shows that a front is gone."""
        for front in self._turns:
            self._send(front, Kind.BEAT)

    def _say(self, front: Front, events: Sequence[Event]) -> None:
        self._send(front, Kind.EVENTS, encode(list(events)))

    def _send(self, front: Front, kind: Kind, body: bytes = b"") -> None:
        front.sent += 1
        self.outbox.append((front.identity, packed(kind, front.order.epoch, front.sent, body)))

    # -- the end of sessions ---------------------------------------------------------------------

    def gone(self, identity: bytes) -> None:
        """End the session of a connection that has ended."""
        front = self._fronts.get(identity)
        if front is not None:
            self.counts.lost_fronts += 1
            log.warning("front %s is gone; its contexts are closed", front.name)
            self._end(front)

    def end_all(self, reason: str) -> None:
        """End every session, as the engine is about to end."""
        for front in list(self._turns):
            self._send(front, Kind.ENDED, reason.encode())
            self._end(front)

    def _break(self, front: Front, error: FrameError) -> None:
        """End a session whose frames are malformed."""
        self.counts.broken_sessions += 1
        log.error("the session of front %s is over: %s", front.name, error)
        self._send(front, Kind.ENDED, str(error).encode())
        self._end(front)

    def _end(self, front: Front) -> None:
        del self._fronts[front.identity]
        self._turns.remove(front)
        self._over[front.number] = front


def _renumbered(item: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of a snapshot with the front's own numbers."""
    return {k: v & OWN if k in ("context", "request", "id") else v for k, v in item.items()}
