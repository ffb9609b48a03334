"""TransferBudget: how much KV one pass may copy between the device and host memory.

InferCept, section 4.1: copies during a pass cost nothing as long as they take no longer than the
pass. So at most N tokens are copied, where T_swap(N) = T_fwd(B) for a batch B. Each direction may
use three quarters of N, so that neither starves. The page pools, not this budget, limit copies by
the room on either side.

KV in host memory may be copied or computed again. Computing a token delays every request of the
pass; copying it delays only its own request. A request waits for copies if the sum is smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglang.srt.schedule.costs import Costs

CHEAP = 0.25  # copying is waited for if it takes less than this share of the time of computing
SHARE = 0.75  # most of a pass's copies that one direction may use


class TransferBudget:
    """Number of pages that the planned pass may still copy.

    Args:
        costs: learnt costs of passes and copies.
        tokens: number of tokens that the pass will compute.
        page_size: tokens a page.
        most: most tokens to copy each way, however long the pass takes.
        sampling: number of requests that the pass samples for, about.

    Attributes:
        tokens: number of tokens that the pass will compute, as far as known.
        awaited: tokens in host memory that requests wait for and that later passes will copy.
        backlog: ``awaited`` of the previous pass.
    """

    def __init__(
        self, costs: Costs, tokens: int, page_size: int, most: int, sampling: int = 0
    ) -> None:
        self._costs, self.tokens, self._sampling = costs, tokens, sampling
        self._page_size, self._most = page_size, most
        self._stored = self._loaded = self.awaited = self.backlog = 0

    @property
    def storable(self) -> int:
        """Number of pages that may still be copied to host memory."""
        return self._room(self._stored) // self._page_size

    @property
    def loadable(self) -> int:
        """Number of pages that may still be copied from host memory."""
        return self._room(self._loaded) // self._page_size

    @property
    def cheap(self) -> bool:
        """Whether waiting for the copy of a token delays its request by less time than computing
        the token delays all requests that the pass samples for, together."""
        return self._sooner(1, 1)

    def loads(self, count: int, others: int) -> int:
        """Note that a request, planned to compute ``count`` tokens, loads tokens from host memory
        instead; host memory lacks ``others`` of its tokens. Return the number of tokens that the
        request computes in any case. A shorter pass leaves less time for copies."""
        if self.cheap:  # ``transfer_of`` has not counted the request's tokens
            return 0
        sure = min(others, count)
        self.computes(sure - count)
        return sure

    def waits(self, tokens: int) -> bool:
        """Return whether a request should compute nothing until ``tokens`` more tokens are copied,
        after the ``awaited`` ones. If so, add them. Always False if the pass loads nothing."""
        waits = tokens > 0 < self._loaded and self._sooner(self.awaited + tokens, tokens)
        if waits:
            self.awaited += tokens
        return waits

    def _sooner(self, copied: int, computed: int) -> bool:
        """Return whether copying ``copied`` tokens costs less time than computing ``computed``."""
        costs = self._costs
        delayed = max(CHEAP, self._sampling)
        return copied * costs.copy.b < computed * delayed * costs.forward.b

    def store(self, pages: int) -> None:
        """Note that the pass copies ``pages`` pages to host memory."""
        self._stored += pages * self._page_size

    def load(self, pages: int) -> None:
        """Note that the pass copies ``pages`` pages from host memory."""
        self._loaded += pages * self._page_size

    def computes(self, change: int) -> None:
        """Note that the pass computes ``change`` tokens more than planned, or fewer if negative."""
        self.tokens = max(self.tokens + change, 0)

    def _room(self, used: int) -> int:
        """Return how many more tokens a direction that has used ``used`` may copy."""
        whole = self._costs.copyable(self.tokens)
        share = min(int(SHARE * whole), self._most)
        return max(min(share - used, whole - self._stored - self._loaded), 0)


def transfer_of(
    costs: Costs, decided: Sequence[tuple[int, int]], host_tokens: Callable[[int], int],
    page_size: int, most: int, backlog: int,
) -> TransferBudget:  # fmt: skip
    """Return the copy budget of a pass.

    Args:
        decided: (request id, tokens that the pass should compute). If waiting for copies is cheap,
            prompts with more KV in host memory do not count: they will wait for it, so the pass
            will be shorter, and copies to host memory must not use that time.
        host_tokens: returns how many of a request's next tokens host memory has.
        page_size, most, backlog: as in ``TransferBudget``.
    """
    counts = [count for _, count in decided]
    transfer = TransferBudget(costs, sum(counts), page_size, most, counts.count(1))
    transfer.backlog = backlog
    if transfer.cheap:
        waiting = (count for number, count in decided if count > 1 and host_tokens(number))
        transfer.computes(-sum(waiting))
    return transfer
