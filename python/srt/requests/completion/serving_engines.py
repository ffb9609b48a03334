"""ServingEngines: the engines that requests run on. A request is on one engine at a time.

OneEngine   always the same one, whose loss ends its requests
Supervisor  one that is started again where it is lost (``runtime/supervisor``)
Fleet       several, among which a router chooses (``runtime/fleet``)
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
    """The engine is well, and leaves: what it had not finished goes on elsewhere, and does not
    count as having lost an engine."""


class AdapterHolders(Protocol):
    """Knows which engines have an adapter, where engines are started again without it."""

    def has(self, client: Client, name: str) -> bool:
        """Whether an engine has the adapter; also true where it is not to have it."""
        ...

    async def restored(self, client: Client, name: str) -> None:
        """Return when that is so, or the engine is lost."""
        ...


class AllHaveAll:
    """Adapters of engines that are started with all of them."""

    def has(self, client: Client, name: str) -> bool:
        return True

    async def restored(self, client: Client, name: str) -> None:
        """Return at once."""


class Assignment:
    """A request on the engine that was chosen for it. This one takes no notes.

    Attributes:
        client: of the engine.
    """

    def __init__(self, client: Client) -> None:
        self.client = client

    def begun(self, stats: RequestStats) -> None:
        """Note that its first event has come."""

    def ended(self, generated: int) -> None:
        """Note that it runs there no more, ``generated`` tokens later. A second call has no
        effect."""


class ServingEngines(Protocol):
    """The engines that requests run on."""

    @property
    def info(self) -> EngineInfo:
        """Facts of every one of them."""
        ...

    @property
    def clients(self) -> Sequence[Client]:
        """The clients of the engines that serve at this moment."""
        ...

    @property
    def count(self) -> int:
        """Number of engines, those that are being started included."""
        ...

    @property
    def pending(self) -> int:
        """Requests that no engine has ended yet."""
        ...

    @property
    def lost(self) -> EngineLost | None:
        """Reason that no engine can answer, None while one can."""
        ...

    @property
    def stalled(self) -> str:
        """Reason that no engine goes on for now; "" while one does."""
        ...

    def assign(self, request: CompletionRequest) -> Assignment:
        """Choose the engine of a new request."""
        ...

    async def reassign(self, request: CompletionRequest, client: Client) -> Assignment:
        """Choose the engine of a request whose engine, ``client``'s, was lost; wait for one that
        can serve it. Raises EngineLost where none comes."""
        ...

    def holder(self, request: CompletionRequest) -> Client:
        """Return the client of the engine that is most likely to have the prompt's KV."""
        ...

    async def control(self, op: str, limit: int = 0) -> Mapping[str, Reply]:
        """Send a Control to every engine that serves; return their answers by name. Raises
        EngineLost where there is none."""
        ...


class OneEngine:
    """One engine, whose loss ends its requests.

    Attributes:
        client: of the engine.
        count: 1.
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
    """The same engines; of a client its engine alone."""
    return OneEngine(engines) if isinstance(engines, Client) else engines


def merged(replies: Mapping[str, Reply]) -> Reply:
    """Several engines' answers as one: numbers are added, other data is the first engine's. It is
    refused where an engine refused it."""
    first, *others = replies.values()
    if not others:
        return first
    data = dict(first.data)
    for key, value in first.data.items():
        if isinstance(value, (int, float)):
            data[key] = sum(reply.data.get(key, 0) for reply in replies.values())
    reasons = (f"engine {name}: {each.message}" for name, each in replies.items() if not each.ok)
    return Reply(first.id, all(reply.ok for reply in replies.values()), "; ".join(reasons), data)
