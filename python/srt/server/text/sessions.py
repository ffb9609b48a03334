"""Sessions: what requests have said and generated, kept so that the next one sends what is new.

A session is a tree of requests. The prompt of a request is the context of the one that it names,
which is that one's prompt and what it generated, and then its own tokens. The server keeps token
ids; their KV is in the prefix cache like any other. So a flush, an eviction or another engine costs
time and changes no answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from srt.core.ints import Ints, ints
from srt.program.output import Output
from srt.program.request import MAX_NAME, RequestError
from srt.server.wire.caller import current

MAX_SESSIONS = 1024  # open at once, of one tenant
MAX_REQUESTS = 4096  # of one session
MAX_TOKENS = 1 << 22  # kept for one tenant: 16 MiB
IDLE_SECONDS = 3600.0  # without a request until a session is closed, where it names no time
MOST_IDLE_SECONDS = 7 * 86400.0


class SessionParams(msgspec.Struct, kw_only=True):
    """``session_params`` of a request.

    Attributes:
        id: the session.
        rid: the request whose context is continued; None: a new beginning.
        offset: only so many tokens of that context are taken (negative: all but so many).
        replace: what followed that request is removed, and it is ended if it is running; with
            ``rid`` None everything is.
        drop_previous_output: of that request the prompt alone is taken.
    """

    id: str | None = None
    rid: str | None = None
    offset: int | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


class OpenSessionBody(msgspec.Struct, kw_only=True):
    """``capacity_of_str_len``: tokens that a prompt of the session may have, 0 for as many as the
    model takes. ``streaming``: every request continues the last one."""

    capacity_of_str_len: int = 0
    session_id: str | None = None
    streaming: bool | None = None
    timeout: float | None = None


class CloseSessionBody(msgspec.Struct, kw_only=True):
    session_id: str


@dataclass(eq=False, slots=True)
class Turn:
    """One request of a session. ``output`` grows while it runs."""

    session: Session
    rid: str
    parent: Turn | None
    prompt: Ints
    output: Sequence[int] = ()
    running: bool = True
    children: list[Turn] = field(default_factory=list)

    def context(self, drop_output: bool) -> Ints:
        return self.prompt if drop_output else self.prompt + ints(self.output)


@dataclass(eq=False, slots=True)
class Session:
    """``used``: when a request of it last began or ended. ``turns``: by the id of the request."""

    id: str
    tenant: Tenancy
    capacity: int
    streaming: bool
    idle: float
    used: float
    turns: dict[str, Turn] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return any(turn.running for turn in self.turns.values())


@dataclass(eq=False, slots=True)
class Tenancy:
    """The sessions of one tenant. ``tokens``: those kept in all of them."""

    name: str
    sessions: dict[str, Session] = field(default_factory=dict)
    tokens: int = 0


class Sessions:
    """The sessions of all tenants; a tenant meets its own alone.

    Args:
        abort: ends the requests of an id and an owner.
        begin: ids that the tokenizer puts before a text, which are left out behind another.
    """

    def __init__(
        self,
        abort: Callable[[str, str], int],
        begin: Sequence[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._abort, self._begin, self._clock = abort, list(begin), clock
        self._tenants: dict[str, Tenancy] = {}

    def open(self, body: OpenSessionBody) -> str:
        """The id of a new session. Raises RequestError."""
        if body.capacity_of_str_len < 0:
            raise RequestError(
                f"capacity_of_str_len is {body.capacity_of_str_len}; give a number of tokens, or 0 "
                "for the model's context.",
                "capacity_of_str_len",
            )
        idle = IDLE_SECONDS if body.timeout is None else body.timeout
        if not 0 < idle <= MOST_IDLE_SECONDS:
            raise RequestError(
                f"timeout is {idle:g}; it must be above 0 and at most {MOST_IDLE_SECONDS:g} "
                "seconds.",
                "timeout",
            )
        number = body.session_id or uuid.uuid4().hex
        _verify_name(number)
        tenant = self._tenant()
        if number in tenant.sessions:
            raise RequestError(f"The session {number!r:.80} is open already.", "session_id")
        if len(tenant.sessions) >= MAX_SESSIONS:
            raise RequestError(
                f"{len(tenant.sessions)} sessions are open and {MAX_SESSIONS} may be; close some.",
                "session_id",
                "queue_full",
            )
        self._tenants[tenant.name] = tenant
        tenant.sessions[number] = Session(
            number, tenant, body.capacity_of_str_len, bool(body.streaming), idle, self._clock()
        )
        return number

    def close(self, number: str) -> bool:
        """Close a session; what runs in it ends with reason "abort". False where there is none.
        Raises RequestError for a name that none can have."""
        _verify_name(number)
        session = self._tenant().sessions.get(number)
        if session is not None:
            self._close(session)
        return session is not None

    def begin(self, params: SessionParams, rid: str, tokens: Ints) -> Turn:
        """The next request of a session, with its whole prompt. It must then be followed
        (``follow``). Raises RequestError."""
        session = self._named(params.id)
        parent = self._parent(session, params)
        if rid in session.turns:
            raise RequestError(f"The session has a request {rid!r:.80} already.", "rid")
        prompt = tokens if parent is None else self._continued(parent, params, tokens)
        if session.capacity and len(prompt) > session.capacity:
            raise RequestError(
                f"The prompt has {len(prompt)} tokens with those of the session before it, which "
                f"was opened for {session.capacity} (capacity_of_str_len).",
                "session_params",
            )
        self._verify_room(session, len(prompt))
        if params.replace:
            self._replace(session, parent)
        turn = Turn(session, rid, parent, prompt)
        if parent is not None:
            parent.children.append(turn)
        session.turns[rid], session.used = turn, self._clock()
        session.tenant.tokens += len(prompt)
        return turn

    async def follow(
        self, turn: Turn, run: Callable[[], AsyncGenerator[tuple[int, Output], None]]
    ) -> AsyncGenerator[tuple[int, Output], None]:
        """The items of ``run()``; what is generated becomes the turn's. A request that is refused
        leaves no turn. Raises what ``run`` raises."""
        seen = False
        try:
            async with aclosing(run()) as items:
                async for item in items:
                    seen, turn.output = True, item[1].tokens
                    yield item
        finally:
            turn.running, turn.output = False, ints(turn.output)
            turn.session.used = self._clock()
            if turn.session.turns.get(turn.rid) is turn:
                turn.session.tenant.tokens += len(turn.output)
                if not seen:
                    self._remove([turn])

    # -- the tree -----------------------------------------------------------------------------

    def _parent(self, session: Session, params: SessionParams) -> Turn | None:
        """The turn that a request continues."""
        rid = params.rid
        if session.streaming:
            if rid is not None or params.offset or params.replace or params.drop_previous_output:
                raise RequestError(
                    "A request of a streaming session continues the last one: leave out rid, "
                    "offset, replace and drop_previous_output.",
                    "session_params",
                )
            rid = next(reversed(session.turns), None)
        if rid is None:
            return None
        parent = session.turns.get(rid)
        if parent is None:
            raise RequestError(
                f"The session has no request {rid!r:.80}; name one of its answers' ids.",
                "session_params",
            )
        if parent.running and not params.replace:
            raise RequestError(
                f"The request {rid!r:.80} is still running; wait for it, or replace it.",
                "session_params",
            )
        return parent

    def _continued(self, parent: Turn, params: SessionParams, tokens: Ints) -> Ints:
        """The parent's context, cut where asked for, and ``tokens``."""
        context, offset = parent.context(bool(params.drop_previous_output)), params.offset or 0
        if abs(offset) > len(context):
            raise RequestError(
                f"offset is {offset}; the context of {parent.rid!r:.80} has {len(context)} tokens.",
                "session_params",
            )
        count = len(self._begin)
        if count and list(tokens[:count]) == self._begin:
            tokens = tokens[count:]
        return (context[:offset] if offset else context) + tokens

    def _replace(self, session: Session, parent: Turn | None) -> None:
        """End and remove what follows ``parent``, or everything."""
        if parent is None:
            self._remove(list(session.turns.values()))
            return
        if parent.running:
            self._abort(parent.rid, session.tenant.name)
        self._remove(list(parent.children))

    def _close(self, session: Session) -> None:
        self._remove(list(session.turns.values()))
        del session.tenant.sessions[session.id]
        if not session.tenant.sessions:
            del self._tenants[session.tenant.name]

    def _remove(self, turns: Sequence[Turn]) -> None:
        """Take turns and what follows them out of their session, ending those that run."""
        waiting = list(turns)
        while waiting:
            turn = waiting.pop()
            waiting += turn.children
            session = turn.session
            if session.turns.pop(turn.rid, None) is None:
                continue
            if turn.parent is not None and turn in turn.parent.children:
                turn.parent.children.remove(turn)
            session.tenant.tokens -= len(turn.prompt)
            if turn.running:  # its output is not counted yet
                self._abort(turn.rid, session.tenant.name)
            else:
                session.tenant.tokens -= len(turn.output)

    # -- bounds -------------------------------------------------------------------------------

    def _tenant(self) -> Tenancy:
        """The caller's; sessions that were idle for too long are closed."""
        name, now = current.get().tenant, self._clock()
        tenant = self._tenants.get(name) or Tenancy(name)
        for session in list(tenant.sessions.values()):
            if now - session.used > session.idle and not session.running:
                self._close(session)
        return tenant

    def _named(self, number: str | None) -> Session:
        session = self._tenant().sessions.get(number or "")
        if session is None:
            raise RequestError(
                f"There is no session {number!r:.80}; POST /open_session makes one, and one that "
                "is not used for its timeout is closed.",
                "session_params",
            )
        return session

    def _verify_room(self, session: Session, more: int) -> None:
        held = session.tenant.tokens
        if held + more > MAX_TOKENS:
            raise RequestError(
                f"The open sessions hold {held} tokens and this request {more}; {MAX_TOKENS} may "
                "be held. Close some.",
                "session_params",
                "queue_full",
            )
        if len(session.turns) >= MAX_REQUESTS:
            raise RequestError(
                f"The session holds {len(session.turns)} requests, the most it may; open another.",
                "session_params",
            )


def _verify_name(number: str) -> None:
    if len(number) > MAX_NAME:
        raise RequestError(
            f"session_id has {len(number)} characters; at most {MAX_NAME}.", "session_id"
        )
