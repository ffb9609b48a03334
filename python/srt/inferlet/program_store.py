"""ProgramStore: bytes by key that outlive the programs of a tenant, up to a limit."""

from __future__ import annotations

MOST_BYTES = 64 << 20  # keys and values of one tenant
ENTRY = 128  # bytes of an entry beside its key and value, about


class ProgramStore:
    """Values of all tenants, in memory."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._values: dict[str, dict[str, bytes]] = {}
        self._used: dict[str, int] = {}

    def get(self, owner: str, key: str) -> bytes | None:
        return self._values.get(owner, {}).get(key)

    def set(self, owner: str, key: str, value: bytes) -> None:
        """Store a value. Raises ValueError where the tenant's values would exceed its limit of
        bytes."""
        used = self._used.get(owner, 0) - self._size(owner, key) + _size(key, value)
        if used > self._most:
            raise ValueError(
                f"the store would have {used} bytes; at most {self._most}: delete some"
            )
        self._values.setdefault(owner, {})[key] = value
        self._used[owner] = used

    def delete(self, owner: str, key: str) -> None:
        """A key that is not there: no effect."""
        self._used[owner] = self._used.get(owner, 0) - self._size(owner, key)
        self._values.get(owner, {}).pop(key, None)

    def keys(self, owner: str, prefix: str) -> list[str]:
        """Keys that begin with ``prefix``, sorted."""
        return sorted(key for key in self._values.get(owner, {}) if key.startswith(prefix))

    def _size(self, owner: str, key: str) -> int:
        value = self.get(owner, key)
        return 0 if value is None else _size(key, value)


def _size(key: str, value: bytes) -> int:
    return ENTRY + len(key.encode()) + len(value)
