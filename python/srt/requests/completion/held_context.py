"""Contexts that wait in the engine for a tool's answer, and requests that continue them.

Open, Park              the context is held
Append, Advance         a request has taken the context, and closes it at its end
Close                   the context is given up
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from sglang.srt.core.ints import Ints
from sglang.srt.core.messages import Close, Open, Park
from sglang.srt.engine.client import Client, EngineLost


@dataclass(frozen=True, slots=True)
class Claim:
    """Facts about the wait of a parked context, for the engine.

    Attributes:
        tool: name of the tool.
        owner: tenant whose tool it is.
        expected: seconds that the tool call will take, according to the client; 0: unknown.
        deadline: seconds after which the wait ends.
    """

    tool: str
    owner: str
    expected: float
    deadline: float


class HeldContext:
    """An idle context on one engine, with a claim on its KV (``Park``). It ends when a request
    takes it, when it is closed, or when its engine is lost."""

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
        """Whether a request can still take the context."""
        return self._open and self._client.lost is None

    def on(self, client: Client) -> bool:
        """Whether the engine of ``client`` holds the context."""
        return self.open and client is self._client

    def take(self, client: Client) -> int | None:
        """Take the context for a request on ``client``, which must then close it. Return the
        context's number; None if that engine does not hold it."""
        if not self.on(client):
            return None
        self._open = False
        return self._number

    def close(self) -> None:
        """Close the context, unless a request has taken it."""
        if self._open:
            self._open = False
            with suppress(EngineLost):
                self._client.send(Close(self._number))


@dataclass(frozen=True, slots=True)
class Resumption:
    """Link from a request to the parked context that it continues.

    Attributes:
        number: number of the parked context in the server's store.
        length: number of the prompt's leading tokens that are the parked context's.
        arrived: moment since which the request counts as waiting (``Advance.arrived``).
        since: index of the token where the generation began (``Generate.since``); -1: unset.
        held: the engine's context; None if no engine holds it.
    """

    number: int
    length: int
    arrived: float
    since: int = -1
    held: HeldContext | None = None

    def take(self, client: Client) -> int | None:
        """Take the engine's context for this request. Return its number; None if the request must
        open another context."""
        return None if self.held is None else self.held.take(client)
