"""The section of a Config that says where the engine publishes what its prefix cache holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from sglang.srt.config.sections import flag

_BOUNDS = {
    "buffer_steps": (0, 10_000_000),
    "hwm": (0, 100_000_000),
    "max_queue_size": (1, 100_000_000),
    "block_size": (0, 65536),
}
_FLAG = "--kv-events-config"


@dataclass(frozen=True)
class KvEventsSettings:
    """The object of ``--kv-events-config``.

    Attributes:
        enable_kv_cache_events: whether events are published; None: where ``publisher`` is "zmq".
        publisher: "zmq", or "null" for none.
        endpoint: of the PUB socket; bound where it is ipc or has a ``*`` or ``::``, else connected.
        replay_endpoint: of the ROUTER socket that repeats batches; None: none is repeated.
        buffer_steps: batches that are kept to be repeated.
        hwm: batches that wait for one subscriber before it misses some.
        max_queue_size: batches that wait to be sent before the engine drops some.
        topic: first part of each message.
        block_size: tokens a block; 0: a page, or the smallest number of pages with 16 tokens.
    """

    enable_kv_cache_events: bool | None = None
    publisher: str | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
    block_size: int = 0

    @property
    def enabled(self) -> bool:
        if self.enable_kv_cache_events is None:
            return self.publisher == "zmq"
        return self.enable_kv_cache_events and self.publisher != "null"

    def verify(self) -> None:
        """Raise ValueError, naming the key, its value, its limit and the fix."""
        for f in fields(self):
            value, default = getattr(self, f.name), f.default
            kinds = {"enable_kv_cache_events": "true or false"}
            kind = kinds.get(f.name, "a whole number" if isinstance(default, int) else "a text")
            expected = bool if f.name in kinds else int if isinstance(default, int) else str
            if value is None and default is None:
                continue
            if type(value) is not expected:
                raise ValueError(f"{_FLAG}: {f.name} is {value!r}; it must be {kind}")
        if self.publisher not in (None, "zmq", "null"):
            raise ValueError(f"{_FLAG}: publisher is {self.publisher!r}; use 'zmq' or 'null'")
        for name, (least, most) in _BOUNDS.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(
                    f"{_FLAG}: {name} is {getattr(self, name)}; it must be from {least} to {most}"
                )
        for name in ("endpoint", "replay_endpoint"):
            value = getattr(self, name)
            if value is not None and not value.startswith(("tcp://", "ipc://")):
                raise ValueError(
                    f"{_FLAG}: {name} is {value!r}; it must begin with tcp:// or ipc://, as "
                    "tcp://*:5557"
                )
        if self.replay_endpoint is not None and self.replay_endpoint == self.endpoint:
            raise ValueError(
                f"{_FLAG}: endpoint and replay_endpoint are both {self.endpoint!r}; give each a "
                "port of its own"
            )


@dataclass(frozen=True)
class KvEventsConfig:
    """Events about the prefix cache, for routers."""

    kv_events_config: str = flag(
        "", "JSON object with the ZMQ endpoints that publish stored and removed KV blocks, as "
        '{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'
    )  # fmt: skip

    @property
    def settings(self) -> KvEventsSettings:
        """The object itself. Raises ValueError where it is none, or a value is out of range."""
        if not self.kv_events_config:
            return KvEventsSettings()
        try:
            given: Any = json.loads(self.kv_events_config)
        except ValueError as error:
            raise ValueError(
                f"{_FLAG} is {self.kv_events_config!r}, which is no JSON ({error}); give an object"
            ) from error
        known = [f.name for f in fields(KvEventsSettings)]
        if not isinstance(given, dict):
            raise ValueError(f"{_FLAG} is {given!r}; it must be an object with keys of {known}")
        for name in given:
            if name not in known:
                raise ValueError(f"{_FLAG} has the key {name!r}; its keys are {known}")
        settings = KvEventsSettings(**given)
        settings.verify()
        return settings

    def verify(self) -> None:
        """Raise ValueError as ``settings`` does."""
        self.settings  # noqa: B018

    def of_engine(self, rank: int) -> KvEventsConfig:
        """The same for engine ``rank`` of several: its ports are ``rank`` higher, the names of its
        ipc sockets end in the rank."""
        if not rank or not self.settings.enabled:
            return self
        settings = self.settings
        found = {f.name: getattr(settings, f.name) for f in fields(settings)}
        for name in ("endpoint", "replay_endpoint"):
            if found[name] is not None:
                found[name] = _of_rank(found[name], rank)
        return KvEventsConfig(json.dumps(found))


def _of_rank(endpoint: str, rank: int) -> str:
    head, colon, port = endpoint.rpartition(":")
    if endpoint.startswith("tcp://") and port.isascii() and port.isdigit():
        return f"{head}{colon}{int(port) + rank}"
    return f"{endpoint}-{rank}"
