"""FutureToken: a token that an earlier forward of the queue is to sample, as input of a later one.

A straight loop names the embedding that receives its next token (``forward_with_sampling``'s
``future``) and begins the next forward with it, before it has read the token. The engine computes
that forward in the pass behind the one that samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.inferlet.dispatch import Command

NOT_LEFT = -1  # request of a forward that has not left


@dataclass(eq=False, slots=True)
class FutureToken:
    """One token.

    Attributes:
        call: number of the call that samples it.
        queue: handle of its queue.
        most: number of positions that the model has.
        command: the forward that samples it; None once it is done.
        request: number of that forward for the engine; ``NOT_LEFT`` before it has left.
        token: -1 before it is sampled.
        failed: the forward was refused or has failed: no token comes.
    """

    call: int
    queue: int
    most: int
    command: Command | None = None
    request: int = NOT_LEFT
    token: int = -1
    failed: bool = False

    def sampled(self, token: int) -> None:
        """The token is known."""
        self.token, self.command = token, None

    def fail(self) -> None:
        """No token comes."""
        self.failed, self.command = True, None

    @property
    def loss(self) -> str:
        """Text of the refusal of a forward that begins with the token, where the token failed."""
        return f"it begins with the token of call {self.call}, which sampled none"

    def verify(self, handle: int, index: int, position: int, queue: int) -> None:
        """Raise ValueError unless a forward of ``queue`` may begin with the token at a position.
        ``handle``: of its embedding, which is entry ``index`` of ``iemb``. Whether the token has
        been sampled meanwhile makes no difference."""
        if index:
            raise ValueError(
                f"embedding {handle} has a token that is still to be sampled and is entry {index} "
                "of iemb; such a token may be the first entry alone"
            )
        if self.queue != queue:
            raise ValueError(
                f"embedding {handle} has a token that a forward of queue {self.queue} is to "
                "sample; begin with it in that queue"
            )
        if position >= self.most:
            raise ValueError(
                f"position {position} is outside of the model's context; at most {self.most - 1}"
            )
