"""ServingEngines: interface of the engines that requests run on. A request is on one engine at a
time.

OneEngine   one engine, whose loss ends its requests
Supervisor  one engine that is restarted after a loss (``runtime/supervisor``)
Fleet       several engines, among which a router chooses (``runtime/fleet``)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sglang.srt.core.messages import Reply
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.engine.info import EngineInfo
from sglang.srt.requests.completion.completion_request import CompletionRequest


class EngineLeft(EngineLost):
    """A healthy engine leaves the fleet. Its unfinished requests continue on other engines, and do
    not count this as a loss."""


class AdapterHolders(Protocol):
    """Tells which engines have an adapter. A restarted engine must first load its adapters."""

    def has(self, client: Client, name: str) -> bool:
        """Whether an engine need not wait for the adapter: it has the adapter, or should not have
        it."""
        ...

    async def restored(self, client: Client, name: str) -> None:
        """Return when ``has`` is true, or the engine is lost."""
        ...


class AllHaveAll:
    """AdapterHolders for engines that always have all adapters."""

    def has(self, client: Client, name: str) -> bool:
        return True

    async def restored(self, client: Client, name: str) -> None:
        """Return at once."""


class Assignment:
    """A request on the engine that was chosen for it. Subclasses report its progress to a router.

    Attributes:
        client: client of the engine.
    """

    def __init__(self, client: Client) -> None:
        self.client = client

    def begun(self, stats: RequestStats) -> None:
        """Record the request's first statistics."""

    def ended(self, generated: int) -> None:
        """Record that the request has left the engine, which generated ``generated`` tokens. A
        second call has no effect."""


class ServingEngines(Protocol):
    """The engines that requests run on."""

    @property
    def info(self) -> EngineInfo:
        """Facts that hold for all engines."""
        ...

    @property
    def clients(self) -> Sequence[Client]:
        """The clients of the engines that serve at this moment."""
        ...

    @property
    def count(self) -> int:
        """Number of engines, including engines that are being started."""
        ...

    @property
    def pending(self) -> int:
        """Number of requests that no engine has ended yet."""
        ...

    @property
    def lost(self) -> EngineLost | None:
        """Reason for which no engine can answer; None while one can."""
        ...

    @property
    def stalled(self) -> str:
        """Reason for which no engine makes progress at present; "" while one does."""
        ...

    def assign(self, request: CompletionRequest) -> Assignment:
        """Choose the engine of a new request."""
        ...

    async def reassign(self, request: CompletionRequest, client: Client) -> Assignment:
        """Choose the next engine of a request after the loss of ``client``'s; wait until one can
        serve the request. Raises EngineLost if none comes."""
        ...

    def holder(self, request: CompletionRequest) -> Client:
        """Return the client of the engine that is most likely to have the prompt's KV."""
        ...

    async def control(self, op: str, limit: int = 0) -> Mapping[str, Reply]:
        """Send a Control to every serving engine; return the replies by name. Raises EngineLost if
        there is no engine."""
        ...


class OneEngine:
    """One engine, whose loss ends its requests.

    Attributes:
        client: client of the engine.
        count: number of engines, 1.
    """

    count = 1

    def __init__(self, client: Client) -> None:
        self.client = client

    @property
    def info(self) -> EngineInfo:
        return self.client.info

    @property
    def clients(self) -> Sequence[Client]:
        return (self.client,)

    @property
    def pending(self) -> int:
        return self.client.pending

    @property
    def lost(self) -> EngineLost | None:
        return self.client.lost

    @property
    def stalled(self) -> str:
        return self.client.stalled

    def assign(self, request: CompletionRequest) -> Assignment:
        return Assignment(self.client)

    async def reassign(self, request: CompletionRequest, client: Client) -> Assignment:
        """Raise EngineLost, since there is no other engine."""
        raise (client.lost or EngineLost("the engine was lost")).again()

    def holder(self, request: CompletionRequest) -> Client:
        return self.client

    async def control(self, op: str, limit: int = 0) -> Mapping[str, Reply]:
        return {"0": await self.client.control(op, limit)}


def engines_of(engines: ServingEngines | Client) -> ServingEngines:
    """Return ``engines`` as ServingEngines; a Client becomes OneEngine."""
    return OneEngine(engines) if isinstance(engines, Client) else engines


def merged(replies: Mapping[str, Reply]) -> Reply:
    """Merge the replies of several engines. Numbers are added; other data are the first engine's.
    The merged reply is a refusal if any engine refused."""
    first, *others = replies.values()
    if not others:
        return first
    data = dict(first.data)
    for key, value in first.data.items():
        if isinstance(value, (int, float)):
            data[key] = sum(reply.data.get(key, 0) for reply in replies.values())
    reasons = (f"engine {name}: {each.message}" for name, each in replies.items() if not each.ok)
    return Reply(first.id, all(reply.ok for reply in replies.values()), "; ".join(reasons), data)
