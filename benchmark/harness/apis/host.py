"""``python -m benchmark.harness.apis.host``: a process in which plain client code runs on a
library, spoken to as ``benchmark.peers.sides.wire`` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from benchmark.harness.claim import Api, Item
from benchmark.harness.measure import run_plain
from benchmark.peers.sides.wire import serve

COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")


class Host:
    def load(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """``spec``: ``api`` (module:class) and ``settings``, its arguments."""
        module, _, name = spec["api"].partition(":")
        self.api: Api = getattr(import_module(module), name)(**spec["settings"])
        return {"versions": getattr(self.api, "versions", {})}

    def claim(self, module: str, items: Sequence[Item], mode: str) -> dict[str, Any]:
        """An ``Outcome`` of the claim of ``module``, as plain data."""
        claim = import_module(module).CLAIM
        before = self._counts()
        found = run_plain(claim, self.api, items, mode).plain()
        return {**found, **{key: n - before[key] for key, n in self._counts().items()}}

    def _counts(self) -> dict[str, int]:
        return {key: getattr(self.api, key) for key in COUNTS if hasattr(self.api, key)}


if __name__ == "__main__":
    serve(Host())
