"""Tenants: the API keys that a server knows, and what the tenant of each may still use.

    --api-key          one key; it may do everything, unless there is an admin key
    --admin-api-key    may do everything
    --api-keys-file    keys of tenants, each with limits and, unless it says otherwise, a cache

Without any of them every caller may do everything. With the admin key alone every caller may do
what concerns no other.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from sglang.srt.config import Config
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import SHARED, Caller, InferletGrant

ADMIN = "admin"
MAX_NAME = 64  # characters
MAX_PRIORITY = 1_000_000
MINUTE = 60.0
EVERY_RIGHT = InferletGrant(store=True, topics=True, hosts=("*",))
_UNKNOWN = "This server does not know the API key that was sent."
_MISSING = "Send one API key, as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'."


class Key(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One entry of the file of keys; exactly one of ``key`` and ``sha256``, the digest in hex.

    Limits of 0 do not limit.

    Attributes:
        shared_cache: its requests may meet the KV of others'; else of its own alone.
        priority: added to that of each of its requests.
        admin: it may do what concerns others.
        inferlets: it may upload and run inferlets, with these rights; an admin's may do everything.
    """

    name: str
    key: str = ""
    sha256: str = ""
    priority: int = 0
    max_concurrent_requests: int = 0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    shared_cache: bool = False
    admin: bool = False
    inferlets: InferletGrant | None = None

    def digests(self) -> list[bytes]:
        """Possible SHA-256 digests of the key: a key that is not ASCII has two encodings."""
        if self.sha256:
            return [bytes.fromhex(self.sha256)]
        latin = all(ord(char) < 256 for char in self.key)
        encodings = ("utf-8", "latin-1") if latin else ("utf-8",)
        return list(dict.fromkeys(digest(self.key.encode(name)) for name in encodings))

    def verify(self) -> None:
        """Raise ValueError, naming the entry."""
        if self.name == ADMIN:
            raise ValueError(f"the name {ADMIN!r} is that of --admin-api-key; use another")
        if not 1 <= len(self.name) <= MAX_NAME or not self.name.isprintable():
            raise ValueError(f"name {self.name!r:.80} must be 1 to {MAX_NAME} printable characters")
        if bool(self.key) == bool(self.sha256):
            raise ValueError(f"{self.name!r} needs either key or sha256")
        if not _is_sendable(self.key):
            raise ValueError(f"the key of {self.name!r} begins or ends with a space, or hides one")
        if self.sha256 and not _is_digest(self.sha256):
            raise ValueError(f"sha256 of {self.name!r} must be 64 hexadecimal digits")
        if abs(self.priority) > MAX_PRIORITY:
            raise ValueError(f"priority of {self.name!r} must be within {MAX_PRIORITY} of 0")
        for name in ("max_concurrent_requests", "requests_per_minute", "tokens_per_minute"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} of {self.name!r} must be 0, no limit, or more")


class Bucket:
    """A token bucket: full at first, refilled steadily, never above what one minute allows."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._most, self._clock = float(per_minute), clock
        self._level, self._then = self._most, clock()

    def resize(self, per_minute: int) -> None:
        """Set another rate. What has been used stays used."""
        self._level = self._now() + per_minute - self._most
        self._most = float(per_minute)

    def take(self, amount: float) -> None:
        """Use ``amount``, of the future too where there is not enough."""
        if self._most:
            self._level = self._now() - amount

    def wait(self, amount: float) -> float:
        """Seconds until ``amount`` is there; 0 where it is, or nothing is limited."""
        lack = amount - self._now()
        return max(lack, 0.0) * MINUTE / self._most if self._most else 0.0

    def _now(self) -> float:
        now = self._clock()
        self._level = min(self._most, self._level + (now - self._then) * self._most / MINUTE)
        self._then = now
        return self._level


class Tenant:
    """The holder of a key. ``open``: its requests that are being answered, or run on without
    their clients."""

    def __init__(
        self, key: Key, namespace: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.key, self.namespace, self.open = key, namespace, 0
        self._requests = Bucket(key.requests_per_minute, clock)
        self._tokens = Bucket(key.tokens_per_minute, clock)

    def caller(self, request: str) -> Caller:
        """The caller of the request of this id."""
        key = self.key
        grant = EVERY_RIGHT if key.admin else key.inferlets
        return Caller(
            request, key.name, key.admin, self.namespace, key.priority, self.charge, grant=grant
        )

    def change(self, key: Key, namespace: str) -> None:
        """Set other limits, from now on."""
        self.key, self.namespace = key, namespace
        self._requests.resize(key.requests_per_minute)
        self._tokens.resize(key.tokens_per_minute)

    def enter(self) -> None:
        """Count one request in; each is followed by one ``leave``. Raises RequestError
        ``rate_limit_exceeded``."""
        most, requests = self.key.max_concurrent_requests, self.key.requests_per_minute
        if most and self.open >= most:
            raise _limited(most, "requests at once", "max_concurrent_requests", 1.0)
        if wait := self._requests.wait(1):
            raise _limited(requests, "requests a minute", "requests_per_minute", wait)
        self.verify_tokens()
        self._requests.take(1)
        self.open += 1

    def verify_tokens(self) -> None:
        """Raise RequestError ``rate_limit_exceeded`` while the minute's tokens are used up."""
        if wait := self._tokens.wait(1):
            most = self.key.tokens_per_minute
            raise _limited(most, "tokens a minute", "tokens_per_minute", wait)

    def leave(self) -> None:
        self.open -= 1

    def charge(self, tokens: int) -> None:
        """Count tokens read or written, as they come: a debt keeps later requests out."""
        self._tokens.take(tokens)


def _limited(limit: int, what: str, name: str, wait: float) -> RequestError:
    seconds = math.ceil(wait)
    return RequestError(
        f"This key may have {limit} {what} ({name}); try again in {seconds} s.",
        code="rate_limit_exceeded",
        retry=seconds,
    )


class Tenants:
    """All keys. Attributes:

    required: a request needs a key.
    guarded: there are things that need the right to do them.
    """

    def __init__(self, config: Config) -> None:
        """Read the API keys of the config and of its file. Raises ValueError and OSError, naming
        file and entry."""
        server, edge = config.server, config.edge
        self._path = edge.api_keys_file
        self._own: list[Key] = []
        if server.api_key:
            admin = not edge.admin_api_key
            self._own.append(Key(name="", key=server.api_key, admin=admin, shared_cache=True))
        if edge.admin_api_key:
            self._own.append(Key(name=ADMIN, key=edge.admin_api_key, admin=True, shared_cache=True))
        for flag, key in (("--api-key", server.api_key), ("--admin-api-key", edge.admin_api_key)):
            if not _is_sendable(key):
                raise ValueError(
                    f"{flag} begins or ends with a space, or holds a character that cannot be "
                    "printed; no client can send it"
                )
        self.required = bool(server.api_key or self._path)
        self.guarded = self.required or bool(edge.admin_api_key)
        self._known: list[tuple[bytes, Tenant]] = []
        self._tenants: dict[str, Tenant] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again. Limits of a key are new at once, what it has used stays.

        Raises ValueError and OSError, and nothing has changed.
        """
        keys = [*self._own, *read(self._path)] if self._path else self._own
        if self.guarded and not keys:
            raise ValueError(
                f"--api-keys-file {self._path} holds no key, so no request could be served; add one"
            )
        digests = [one for key in keys for one in key.digests()]
        if len(set(digests)) < len(digests):
            raise ValueError("two of the API keys are the same; give each tenant its own")
        tenants = {key.name: self._tenants.get(key.name) or Tenant(key) for key in keys}
        for key in keys:
            tenants[key.name].change(key, self._namespace(key))
        self._tenants = tenants
        self._known = [(one, tenants[key.name]) for key in keys for one in key.digests()]

    def _namespace(self, key: Key) -> str:
        """No salt that a client may choose makes one of these another."""
        if not self._path:
            return ""
        return SHARED if key.shared_cache else f"{key.name}\0"

    @property
    def several(self) -> bool:
        """Whether several tenants share the engine."""
        return len(self._tenants) > 1 and bool(self._path)

    def caller_of(self, name: str, request: str) -> Caller | None:
        """The caller of a request that this server makes for the tenant ``name``, one of a batch;
        None where there is no such tenant any more. Raises RequestError ``rate_limit_exceeded``
        while the tenant's tokens are used up; its requests are not counted."""
        if not self.guarded:
            return Caller(request)
        tenant = self._tenants.get(name)
        if tenant is not None:
            tenant.verify_tokens()
            return tenant.caller(request)
        return None if name or self.required else Caller(request, admin=False)

    def of(self, key: bytes | None) -> Tenant | None:
        """The tenant of a key that a request brings (None: it brings none); None where no tenant
        has it and none is required.

        Every digest is compared, whole: the time taken tells nothing. Raises RequestError
        ``invalid_api_key``.
        """
        if not self.guarded:
            return None
        found = None
        if key is not None:
            sent = digest(key)
            for one, tenant in self._known:
                found = tenant if hmac.compare_digest(sent, one) else found
        if found is None and self.required:
            raise RequestError(_MISSING if key is None else _UNKNOWN, code="invalid_api_key")
        return found


def read(path: str) -> list[Key]:
    """The keys in a file. Raises ValueError and OSError."""
    try:
        data = Path(path).read_bytes()
        if not data.strip():
            raise ValueError('the file is empty; give a list such as [{"name": "a", "key": "..."}]')
        keys = msgspec.json.decode(data, type=list[Key])
        for key in keys:
            key.verify()
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"--api-keys-file {path}: {error}") from error
    except OSError as error:
        raise OSError(f"--api-keys-file {path}: {error.strerror}") from error
    names = [key.name for key in keys]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"--api-keys-file {path}: two entries are named {twice!r}")
    return keys


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _is_sendable(key: str) -> bool:
    """Whether a header can carry the key as it is."""
    return key == key.strip() and key.isprintable()


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(char in "0123456789abcdefABCDEF" for char in text)
