"""TransferBudget: how much KV one pass may copy between the device and host memory.

InferCept, section 4.1: copies beside a pass cost nothing as long as they take no longer than the
pass. So at most N tokens are copied, where T_swap(N) = T_fwd(B) for a batch B. A direction may have
three quarters of N, so that neither starves. That copies into host memory find room there, and
copies to the device find pages, the pools see to.

What host memory has may be copied or computed. Computing a token delays every request of the pass,
copying it delays only its own. So a request waits for its copies where that is the smaller sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglang.srt.schedule.costs import Costs

CHEAP = 0.25  # part of the time of computing in which copying is worth waiting for in any case
SHARE = 0.75  # of the copies of a pass, most of one direction


class TransferBudget:
    """Pages that the planned pass may still copy.

    Args:
        costs: of passes and copies.
        tokens: those that the pass is to compute.
        page_size: tokens a page.
        most: tokens that may be copied each way, whatever the pass takes.
        sampling: requests that the pass samples for, about.

    Attributes:
        tokens: those that the pass computes, as far as is known.
        awaited: tokens in host memory that its requests wait for, after what it copies.
        backlog: the same of the pass before.
    """

    def __init__(
        self, costs: Costs, tokens: int, page_size: int, most: int, sampling: int = 0
    ) -> None:
        self._costs, self.tokens, self._sampling = costs, tokens, sampling
        self._page_size, self._most = page_size, most
        self._stored = self._loaded = self.awaited = self.backlog = 0

    @property
    def storable(self) -> int:
        """Pages that may still be copied to host memory."""
        return self._room(self._stored) // self._page_size

    @property
    def loadable(self) -> int:
        """Pages that may still be copied from host memory."""
        return self._room(self._loaded) // self._page_size

    @property
    def cheap(self) -> bool:
        """Whether waiting for the copy of a token delays its request by less than computing the
        token delays all that the pass samples for."""
        return self._sooner(1, 1)

    def loads(self, count: int, others: int) -> int:
        """Note that a request, which was to compute ``count`` tokens, loads what host memory has of
        it; ``others``: tokens that it lacks. Return the tokens that it computes at least: a shorter
        pass gives the copies less time."""
        if self.cheap:  # ``transfer_of`` has counted none
            return 0
        sure = min(others, count)
        self.computes(sure - count)
        return sure

    def waits(self, tokens: int) -> bool:
        """Whether a request computes nothing until ``tokens`` more tokens are copied, behind those
        of the requests that wait before it. Never where the pass copies nothing."""
        waits = tokens > 0 < self._loaded and self._sooner(self.awaited + tokens, tokens)
        if waits:
            self.awaited += tokens
        return waits

    def _sooner(self, copied: int, computed: int) -> bool:
        """Whether copying some tokens costs less time than computing others."""
        costs = self._costs
        delayed = max(CHEAP, self._sampling)
        return copied * costs.copy.b < computed * delayed * costs.forward.b

    def store(self, pages: int) -> None:
        """Note copies to host memory."""
        self._stored += pages * self._page_size

    def load(self, pages: int) -> None:
        """Note copies from host memory."""
        self._loaded += pages * self._page_size

    def computes(self, change: int) -> None:
        """Note that the pass computes more tokens than it was to, or fewer where ``change`` is
        negative."""
        self.tokens = max(self.tokens + change, 0)

    def _room(self, used: int) -> int:
        """Tokens left for a direction that has used ``used``."""
        whole = self._costs.copyable(self.tokens)
        share = min(int(SHARE * whole), self._most)
        return max(min(share - used, whole - self._stored - self._loaded), 0)


def transfer_of(
    costs: Costs, decided: Sequence[tuple[int, int]], host_tokens: Callable[[int], int],
    page_size: int, most: int, backlog: int,
) -> TransferBudget:  # fmt: skip
    """Return the budget of a pass.

    Args:
        decided: (request, tokens that the pass is to compute). Where waiting for copies is cheap,
            those of a prompt that host memory has more of do not count, so that copies out do not
            take the time that the prompt will not need.
        host_tokens: tokens that host memory has of a request's next ones.
        page_size, most, backlog: as of ``TransferBudget``.
    """
    counts = [count for _, count in decided]
    transfer = TransferBudget(costs, sum(counts), page_size, most, counts.count(1))
    transfer.backlog = backlog
    if transfer.cheap:
        waiting = (count for number, count in decided if count > 1 and host_tokens(number))
        transfer.computes(-sum(waiting))
    return transfer
