"""Sessions: token ids of earlier requests, kept so that the next one sends what is new.

A session is a tree of requests. A request names its parent. The request's prompt is the parent's
context (the parent's prompt and generated tokens), followed by the request's own tokens. The server
keeps token ids; their KV is in the prefix cache like any other. So a flush, an eviction or another
engine costs time and changes no answer.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.core.ints import Ints, ints
from sglang.srt.requests.common_fields import NAME, verify_fields
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError, shown

MAX_SESSIONS = 1024  # open sessions of one tenant
MAX_REQUESTS = 4096  # requests of one session
MAX_TOKENS = 1 << 22  # tokens kept for one tenant: 16 MiB
IDLE_SECONDS = 3600.0  # default time without a request after which a session is closed
MOST_IDLE_SECONDS = 7 * 86400.0
SWEPT_SESSIONS = 64  # sessions of any tenant that one call of ``_sweep`` examines
SWEPT_REQUESTS = 4096  # a sweep ends when it has removed so many requests


class SessionParams(msgspec.Struct, kw_only=True):
    """``session_params`` of a request."""

    id: Annotated[str | None, None, "The session."] = None
    rid: Annotated[
        str | None,
        None,
        "Request to continue (`meta_info.id` of its answer); null: begin without a context.",
    ] = None
    offset: Annotated[
        int | None,
        None,
        "Leading tokens of the context to use; negative: trailing tokens to drop; 0: use all.",
    ] = None
    replace: Annotated[
        bool | None,
        None,
        "Remove the requests that continue `rid`, and abort running ones; without `rid` all "
        "requests.",
    ] = None
    drop_previous_output: Annotated[
        bool | None, None, "Continue only the prompt of `rid`, without its output."
    ] = None


class OpenSession(msgspec.Struct, kw_only=True):
    """A session to be opened. Null is unset."""

    session_id: Annotated[
        str | None, NAME, "Name of the session, which must not be open already; null: a new name."
    ] = None
    capacity_of_str_len: Annotated[
        int,
        Bounds(least=0),
        "Most tokens of a prompt in the session; 0: the model's limit.",
    ] = 0
    streaming: Annotated[
        bool | None,
        None,
        "Each request continues the last one; `rid` and the like are refused.",
    ] = None
    timeout: Annotated[
        float | None,
        Bounds(0, MOST_IDLE_SECONDS, open=True),
        f"Seconds without a request after which the session is closed; null: {IDLE_SECONDS:.0f}.",
    ] = None


class CloseSession(msgspec.Struct, kw_only=True):
    session_id: Annotated[str, NAME, "The session."]


@dataclass(eq=False, slots=True)
class SessionTurn:
    """One request of a session. ``parent``: id of the request whose context this one continues;
    None: a new beginning. ``output``: the generated tokens, which grow while the request runs."""

    session: Session
    rid: str
    parent: str | None
    prompt: Ints
    output: Sequence[int] = ()
    running: bool = True
    children: dict[str, SessionTurn] = field(default_factory=dict)

    def context(self, drop_output: bool) -> Ints:
        return self.prompt if drop_output else self.prompt + ints(self.output)


@dataclass(eq=False, slots=True)
class Session:
    """A tree of requests of one tenant. ``capacity``: most tokens of a prompt, 0: no limit.
    ``idle``: seconds without a request after which the session is closed. ``used``: moment when one
    of its requests last began or ended. ``running``: number of requests that have not ended.
    ``turns``: the requests by id."""

    id: str
    tenant: Tenancy
    capacity: int
    streaming: bool
    idle: float
    used: float
    running: int = 0
    turns: dict[str, SessionTurn] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Tenancy:
    """The sessions of one tenant. ``tokens``: number of tokens kept in all of them."""

    name: str
    sessions: dict[str, Session] = field(default_factory=dict)
    tokens: int = 0


class Sessions:
    """The sessions of all tenants. Each tenant sees only its own.

    Every call examines some sessions of all tenants and closes those that were idle for too long.
    So a session is closed even if its tenant sends no more requests.

    Args:
        abort: ends the requests with an id and an owner; returns how many.
        begin: token ids that the tokenizer puts before a text. They are removed from a request's
            tokens when these follow an earlier context.
    """

    def __init__(
        self,
        abort: Callable[[str, str], int],
        begin: Sequence[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._abort, self._begin, self._clock = abort, list(begin), clock
        self._tenants: dict[str, Tenancy] = {}
        self._ring: OrderedDict[Session, None] = OrderedDict()  # all; the next to sweep is first

    def open(self, body: OpenSession, owner: str = "") -> str:
        """Open a session of the tenant ``owner`` and return its id. Raises RequestError."""
        verify_fields(body)
        idle = IDLE_SECONDS if body.timeout is None else body.timeout
        session_id = body.session_id or uuid.uuid4().hex
        tenant = self._tenant(owner)
        if self._open(tenant, session_id):
            raise RequestError(f"The session {shown(session_id)} is open already.", "session_id")
        if len(tenant.sessions) >= MAX_SESSIONS:
            self._close_idle(tenant)
        if len(tenant.sessions) >= MAX_SESSIONS:
            raise RequestError(
                f"{len(tenant.sessions)} sessions are open and {MAX_SESSIONS} may be; close some.",
                "session_id",
                "queue_full",
            )
        self._tenants[tenant.name] = tenant
        session = Session(
            session_id, tenant, body.capacity_of_str_len, bool(body.streaming), idle, self._clock()
        )
        tenant.sessions[session_id] = session
        self._ring[session] = None
        return session_id

    def close(self, session_id: str, owner: str = "") -> bool:
        """Close a session; its running requests end with reason "abort". Return False if there is
        no such session. Raises RequestError for an invalid name."""
        verify_fields(CloseSession(session_id=session_id))
        session = self._open(self._tenant(owner), session_id)
        if session is not None:
            self._close(session)
        return session is not None

    def begin(self, params: SessionParams, rid: str, tokens: Ints, owner: str = "") -> SessionTurn:
        """Add a request to a session and return it with its whole prompt. The caller must then run
        it with ``follow``. Raises RequestError."""
        session = self._named(params.id, owner)
        parent = self._parent(session, params)
        if rid in session.turns:
            raise RequestError(f"The session has a request {shown(rid)} already.", "rid")
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
        turn = SessionTurn(session, rid, parent.rid if parent is not None else None, prompt)
        if parent is not None:
            parent.children[rid] = turn
        session.turns[rid], session.used = turn, self._clock()
        session.running += 1
        session.tenant.tokens += len(prompt)
        return turn

    async def follow(
        self, turn: SessionTurn, run: Callable[[], AsyncGenerator[tuple[int, Output], None]]
    ) -> AsyncGenerator[tuple[int, Output], None]:
        """Yield the items of ``run()`` and keep the generated tokens in ``turn``. If ``run`` yields
        nothing, because the request was refused, the turn is removed. Raises the errors of
        ``run``."""
        seen = False
        try:
            async with aclosing(run()) as items:
                async for item in items:
                    seen, turn.output = True, item[1].tokens
                    yield item
        finally:
            turn.running, turn.output = False, ints(turn.output)
            turn.session.used = self._clock()
            turn.session.running -= 1
            if turn.session.turns.get(turn.rid) is turn:
                turn.session.tenant.tokens += len(turn.output)
                if not seen:
                    self._remove([turn])

    # -- the tree -----------------------------------------------------------------------------

    def _parent(self, session: Session, params: SessionParams) -> SessionTurn | None:
        """Return the turn that a request continues, None for a new beginning. Raises
        RequestError."""
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
                f"The session has no request {shown(rid)}; name one of its answers' ids.",
                "session_params",
            )
        if parent.running and not params.replace:
            raise RequestError(
                f"The request {shown(rid)} is still running; wait for it, or replace it.",
                "session_params",
            )
        return parent

    def _continued(self, parent: SessionTurn, params: SessionParams, tokens: Ints) -> Ints:
        """Return the parent's context, cut at ``offset``, followed by ``tokens``."""
        context, offset = parent.context(bool(params.drop_previous_output)), params.offset or 0
        if abs(offset) > len(context):
            raise RequestError(
                f"offset is {offset}; the context of {shown(parent.rid)} has {len(context)} "
                "tokens.",
                "session_params",
            )
        count = len(self._begin)
        if count and list(tokens[:count]) == self._begin:
            tokens = tokens[count:]
        return (context[:offset] if offset else context) + tokens

    def _replace(self, session: Session, parent: SessionTurn | None) -> None:
        """Abort and remove all requests that follow ``parent`` (None: all of the session)."""
        if parent is None:
            self._remove(list(session.turns.values()))
            return
        if parent.running:
            self._abort(parent.rid, session.tenant.name)
        self._remove(list(parent.children.values()))

    def _close(self, session: Session) -> None:
        self._remove(list(session.turns.values()))
        del self._ring[session]
        del session.tenant.sessions[session.id]
        if not session.tenant.sessions:
            del self._tenants[session.tenant.name]

    def _remove(self, turns: Sequence[SessionTurn]) -> None:
        """Remove turns and all their descendants from their session, and abort the running ones.
        The cost of a turn does not depend on the number of its siblings."""
        waiting = list(turns)
        while waiting:
            turn = waiting.pop()
            session = turn.session
            if session.turns.pop(turn.rid, None) is None:
                continue
            waiting += turn.children.values()
            parent = session.turns.get(turn.parent) if turn.parent is not None else None
            if parent is not None:
                del parent.children[turn.rid]
            session.tenant.tokens -= len(turn.prompt)
            if turn.running:  # the output is not counted yet
                self._abort(turn.rid, session.tenant.name)
            else:
                session.tenant.tokens -= len(turn.output)

    # -- bounds -------------------------------------------------------------------------------

    def _tenant(self, owner: str) -> Tenancy:
        """Sweep the sessions of all tenants, then return those of one tenant."""
        self._sweep()
        return self._tenants.get(owner) or Tenancy(owner)

    def _sweep(self) -> None:
        """Close idle sessions of all tenants. One call examines a bounded number of sessions; the
        next call continues after them."""
        removed = 0
        for _ in range(min(SWEPT_SESSIONS, len(self._ring))):
            session = next(iter(self._ring))
            self._ring.move_to_end(session)
            if self._is_idle(session):
                removed += len(session.turns)
                self._close(session)
            if removed >= SWEPT_REQUESTS:
                break

    def _is_idle(self, session: Session) -> bool:
        return not session.running and self._clock() - session.used > session.idle

    def _close_idle(self, tenant: Tenancy) -> None:
        """Close all idle sessions of a tenant, which has reached a limit."""
        for session in list(tenant.sessions.values()):
            if self._is_idle(session):
                self._close(session)

    def _open(self, tenant: Tenancy, session_id: str) -> Session | None:
        """Return the open session of this id, or None. An idle one is closed now, because the sweep
        may not have reached it yet."""
        session = tenant.sessions.get(session_id)
        if session is not None and self._is_idle(session):
            self._close(session)
            return None
        return session

    def _named(self, session_id: str | None, owner: str) -> Session:
        session = self._open(self._tenant(owner), session_id or "")
        if session is None:
            raise RequestError(
                f"There is no session {shown(session_id)}; POST /open_session makes one, and one "
                "that is not used for its timeout is closed.",
                "session_params",
            )
        return session

    def _verify_room(self, session: Session, more: int) -> None:
        if session.tenant.tokens + more > MAX_TOKENS:
            self._close_idle(session.tenant)
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
