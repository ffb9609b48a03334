"""``kv_hints`` as an orchestrator sends them, and a server that has parked nothing afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from helpers.http_server import Served

KEEPING = [("kv.retain", "accepted"), ("kv.pin", "clipped"), ("kv.demote", "accepted")]


def hints(*kinds: str, **payload: Any) -> dict[str, Any]:
    """A message of one action a kind, ``a0`` and so on, each with the payload."""
    actions = [
        {"action_id": f"a{i}", "action_type": kind, "action_version": "1.0", "payload": payload}
        for i, kind in enumerate(kinds)
    ]
    return {"protocol_version": "0.1", "message_id": "m", "actions": actions}


def emptied(served: Served) -> Iterator[None]:
    """The body of a fixture: behind the test everything parked is closed."""
    yield
    served.client.post("/abort_request", json={"abort_all": True})
    served.client.idle()
    served.state.runtime.parked.check()
    assert served.state.runtime.parked.empty
