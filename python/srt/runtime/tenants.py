"""Tenants: the API keys that a server knows, and the remaining quota of each key's tenant.

    --api-key          one key; it has all rights, unless there is an admin key
    --admin-api-key    a key with all rights
    --api-keys-file    keys of tenants, each with limits and, by default, a cache of its own

Without these flags every caller has all rights. With the admin key alone, a caller without a key
may do everything that does not affect other callers.
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
    """One entry of the file of keys. It has either ``key`` or ``sha256``, the key's digest in hex.

    A limit of 0 means no limit.

    Attributes:
        shared_cache: the tenant's requests share the cache with others; otherwise only with
            requests of the same tenant.
        priority: added to the priority of each of the tenant's requests.
        admin: the tenant may affect other callers and change the server.
        inferlets: rights of the tenant's inferlets; None: it may run none. An admin has all rights.
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
        """Raise ValueError, naming the entry, if a field is invalid."""
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
        """Set another rate. The amount used so far stays used."""
        self._level = self._now() + per_minute - self._most
        self._most = float(per_minute)

    def take(self, amount: float) -> None:
        """Use ``amount``; the level becomes negative if there is not enough."""
        if self._most:
            self._level = self._now() - amount

    def wait(self, amount: float) -> float:
        """Return the seconds until ``amount`` is available; 0 if it is, or if there is no limit."""
        lack = amount - self._now()
        return max(lack, 0.0) * MINUTE / self._most if self._most else 0.0

    def _now(self) -> float:
        now = self._clock()
        self._level = min(self._most, self._level + (now - self._then) * self._most / MINUTE)
        self._then = now
        return self._level


class Tenant:
    """The holder of a key. ``open``: number of its requests that are being answered, or continue
    without their clients."""

    def __init__(
        self, key: Key, namespace: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.key, self.namespace, self.open = key, namespace, 0
        self._requests = Bucket(key.requests_per_minute, clock)
        self._tokens = Bucket(key.tokens_per_minute, clock)

    def caller(self, request: str) -> Caller:
        """Return the Caller of the request with this id."""
        key = self.key
        grant = EVERY_RIGHT if key.admin else key.inferlets
        return Caller(
            request, key.name, key.admin, self.namespace, key.priority, self.charge, grant=grant
        )

    def change(self, key: Key, namespace: str) -> None:
        """Set new limits; the usage so far is kept."""
        self.key, self.namespace = key, namespace
        self._requests.resize(key.requests_per_minute)
        self._tokens.resize(key.tokens_per_minute)

    def enter(self) -> None:
        """Count a request that begins; the caller later calls ``leave`` once. Raises RequestError
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
        """Count tokens that were read or generated. A negative level blocks later requests."""
        self._tokens.take(tokens)


def _limited(limit: int, what: str, name: str, wait: float) -> RequestError:
    seconds = math.ceil(wait)
    return RequestError(
        f"This key may have {limit} {what} ({name}); try again in {seconds} s.",
        code="rate_limit_exceeded",
        retry=seconds,
    )


class Tenants:
    """All keys of a server.

    Attributes:
        required: every request needs a key.
        guarded: some routes need rights, so there is at least one key.
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
        """Read the file of keys again. New limits hold at once; the usage so far is kept.

        Raises ValueError and OSError; the keys are then unchanged.
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
        """Return the key's namespace. A NUL ends each, so no client's salt can imitate another."""
        if not self._path:
            return ""
        return SHARED if key.shared_cache else f"{key.name}\0"

    @property
    def several(self) -> bool:
        """Whether several tenants share the engine."""
        return len(self._tenants) > 1 and bool(self._path)

    def caller_of(self, name: str, request: str) -> Caller | None:
        """Return the Caller of a batch's request, which this server makes for the tenant ``name``;
        None if the tenant does not exist any more. Such requests are not counted. Raises
        RequestError ``rate_limit_exceeded`` while the tenant's tokens are used up."""
        if not self.guarded:
            return Caller(request)
        tenant = self._tenants.get(name)
        if tenant is not None:
            tenant.verify_tokens()
            return tenant.caller(request)
        return None if name or self.required else Caller(request, admin=False)

    def of(self, key: bytes | None) -> Tenant | None:
        """Return the tenant of a request's key (None: the request has no key). Return None if no
        tenant has the key and none is required.

        Every digest is compared completely, so the time reveals nothing. Raises RequestError
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
    """Return the keys in a file. Raises ValueError and OSError."""
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
    """Whether an HTTP header can carry the key unchanged."""
    return key == key.strip() and key.isprintable()


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(char in "0123456789abcdefABCDEF" for char in text)
