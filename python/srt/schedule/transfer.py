"""TransferBudget: how much KV one pass may copy between the device and host memory.

InferCept, section 4.1: copies beside a pass cost nothing as long as they take no longer than the
pass. So at most N tokens are copied, where T_swap(N) = T_fwd(B) for a batch B. Half of N is for
each direction: what leaves makes room for what comes, and neither is to starve. That copies into
host memory find room there, and copies to the device find pages, the pools see to.
"""

from __future__ import annotations

from sglang.srt.schedule.costs import Costs

CHEAP = 0.25


class TransferBudget:
    """Pages that the planned pass may still copy.

    Args:
        costs: of passes and copies.
        tokens: those that the pass is to compute.
        page_size: tokens a page.
        most: tokens that may be copied each way, whatever the pass takes.

    Attributes:
        tokens: those that the pass computes, as far as is known.
    """

    def __init__(self, costs: Costs, tokens: int, page_size: int, most: int) -> None:
        self._costs, self.tokens = costs, tokens
        self._page_size, self._most = page_size, most
        self._stored = self._loaded = 0

    @property
    def storable(self) -> int:
        """Pages that may still be copied to host memory."""
        return self._room(self._stored) // self._page_size

    @property
    def loadable(self) -> int:
        """Pages that may still be copied from host memory."""
        return self._room(self._loaded) // self._page_size

    @property
    def loadable_instead(self) -> int:
        """Tokens that may still be copied from host memory where the pass would compute them
        otherwise: without them it takes less time, and other copies have less. Where copies are
        cheap, the pass takes less time than planned in any case."""
        line = self._costs
        if self.cheap:
            return self._room(self._loaded)
        return int(self._room(self._loaded) / (1 + line.link * line.forward.b))

    @property
    def cheap(self) -> bool:
        """Whether copying a token takes less than ``CHEAP`` of computing it."""
        return self._costs.copy.b < CHEAP * self._costs.forward.b

    def store(self, pages: int) -> None:
        """Note copies to host memory."""
        self._stored += pages * self._page_size

    def load(self, pages: int) -> None:
        """Note copies from host memory."""
        self._loaded += pages * self._page_size

    def spare(self, tokens: int) -> None:
        """Note that the pass computes ``tokens`` tokens less."""
        self.tokens = max(self.tokens - tokens, 0)

    def _room(self, used: int) -> int:
        """Tokens left for a direction that has used ``used``."""
        whole = self._costs.copyable(self.tokens)
        half = min(whole // 2, self._most)
        return max(min(half - used, whole - self._stored - self._loaded), 0)
