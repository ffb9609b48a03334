"""Contexts that wait in the engine for a tool's answer, and requests that go on with them.

Open, Park              held
Append, Advance         taken by the request that goes on with it, which closes it
Close                   given up
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from sglang.srt.core.ints import Ints
from sglang.srt.core.messages import Close, Open, Park
from sglang.srt.engine.client import Client, EngineLost


@dataclass(frozen=True, slots=True)
class Claim:
    """Facts about a wait, for the engine.

    Attributes:
        tool: name of the tool.
        owner: tenant whose tool it is.
        expected: seconds that the call will take, by the client; 0: it does not say.
        deadline: seconds after which the wait ends.
    """

    tool: str
    owner: str
    expected: float
    deadline: float


class HeldContext:
    """An idle context on one engine, with a claim on its KV (``Park``). It has one end: a request
    takes it, or it is closed. A context of an engine that was lost is gone with it."""

    def __init__(
        self, client: Client, tokens: Ints, claim: Claim, namespace: str = "", adapter: str = ""
    ) -> None:
        """Open the context. Raises EngineLost."""
        self._client, self._number, self._open = client, client.new_id(), True
        client.send(
            Open(self._number, tokens.tobytes(), namespace, adapter=adapter),
            Park(self._number, claim.tool, claim.owner, claim.expected, claim.deadline),
        )

    @property
    def open(self) -> bool:
        """Whether the engine still has it for a request."""
        return self._open and self._client.lost is None

    def on(self, client: Client) -> bool:
        """Whether it is the engine of ``client`` that has it."""
        return self.open and client is self._client

    def take(self, client: Client) -> int | None:
        """The context's number for a request on ``client``, which closes the context from now on;
        None where that engine does not have it any more."""
        if not self.on(client):
            return None
        self._open = False
        return self._number

    def close(self) -> None:
        """Give the context up, unless a request has taken it."""
        if self._open:
            self._open = False
            with suppress(EngineLost):
                self._client.send(Close(self._number))


@dataclass(frozen=True, slots=True)
class Resumption:
    """Link from a request to the parked context that it goes on with.

    Attributes:
        number: of the parked context, in the server's store.
        length: leading tokens of the prompt that are the parked context's own.
        arrived: moment from which on the request counts as waiting (``Advance.arrived``).
        since: index of the token where its generation began (``Generate.since``).
        held: the engine's context; None where no engine holds it.
    """

    number: int
    length: int
    arrived: float
    since: int = -1
    held: HeldContext | None = None

    def take(self, client: Client) -> int | None:
        """The engine's context, for this request alone; None where it must open another."""
        return None if self.held is None else self.held.take(client)
