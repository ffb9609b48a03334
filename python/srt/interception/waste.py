"""Waste: memory that a context in a tool call occupies without use, by the treatment of its KV.

Equations (2), (4) and (5) of InferCept (sections 3.2, 4.2 and 4.3). Results are in token
milliseconds: times M, the bytes of a token's KV, they are the paper's memory times time.

    paper       here
    C_i^j       ``context``: tokens of the context in the call
    C_other     ``other``: tokens of the contexts of all other running requests
    T_INT       ``t_int``: milliseconds of the call; here the expected milliseconds from now on
    T_fwd       ``t_fwd``: milliseconds of a forward pass, by its tokens
    n           ``n``: passes that a recomputation is spread over

Tokens shared with other requests waste nothing as long as these requests keep them. So ``context``
should count only the tokens that no other context shares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from sglang.srt.schedule.costs import Costs

Milliseconds: TypeAlias = Callable[[float], float]  # by tokens


def waste_preserve(context: float, t_int: float) -> float:
    """WastePreserve, equation (2): T_INT C. The memory is held while the call lasts."""
    return t_int * context


def waste_chunk_discard(context: float, other: float, n: int, t_fwd: Milliseconds) -> float:
    """WasteChunkD, equation (4): T_fwd(C) C / 2 + n T_fwd(C / n) C_other.

    The context is computed again in ``n`` chunks beside the other requests. Its memory grows chunk
    by chunk, so that half of it is held on average.

    Args:
        t_fwd: returns the milliseconds that tokens *add* to a pass, without the constant part of a
            pass (``added``): other requests need the passes anyway. The paper's n T_fwd(C / n) <=
            T_fwd(C) does not hold with a constant part.

    Raises ValueError if ``n`` is below 1.
    """
    if n < 1:
        raise ValueError(f"n is {n}; a recomputation takes at least 1 pass")
    return t_fwd(context) * context / 2 + n * t_fwd(context / n) * other


def waste(context: float, other: float, t_int: float, n: int, t_fwd: Milliseconds) -> float:
    """Waste, equation (5): the smaller of (2) and (4). Arguments as in these."""
    return min(waste_preserve(context, t_int), waste_chunk_discard(context, other, n, t_fwd))


def added(costs: Costs) -> Milliseconds:
    """Return the function ``t_fwd`` of (4) and (5): milliseconds that tokens add to a pass."""
    slope = costs.forward.b
    return lambda tokens: slope * tokens


def chunks(context: int, chunk: int) -> int:
    """Return ``n`` of (4) if a pass has room for ``chunk`` more tokens: the saturation point S
    minus the running requests' tokens (section 4.2). ``chunk`` counts as at least 1."""
    return max(-(-context // max(chunk, 1)), 1)
