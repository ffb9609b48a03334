"""EmbedMap: what a program's embeddings hold, and the forwards that fill them.

An embedding holds a token at a position (``embed_txt``), the token that a forward is to sample, or
what a forward leaves in it: a hidden state, and the distribution after it. Calls of a chain
embed_txt, forward, get_next_dist are recorded here and leave as one ``ForwardTokens``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang.srt.core.ints import Ints
from sglang.srt.core.space_messages import WHOLE, ForwardDone
from sglang.srt.inferlet.calls import TOP, GetNextDistCall
from sglang.srt.inferlet.driver import Fault
from sglang.srt.inferlet.future_token import FutureToken

EMBEDDINGS = 1 << 16  # embeddings that a program may have


@dataclass(eq=False, slots=True)
class TokenOutput:
    """The distribution after one token of a forward.

    Attributes:
        states: a hidden state is kept too, and no distribution unless one is requested.
        top: most likely tokens wanted; -1: no distribution; WHOLE: all tokens.
        probe: tokens whose log-probability is wanted.
        asked: calls that wait for it.
        done: the forward's answer.
        failed: why there is none.
    """

    emb: int
    states: bool
    top: int = -1
    probe: tuple[int, ...] = ()
    asked: list[GetNextDistCall] = field(default_factory=list)
    done: ForwardDone | None = None
    failed: Fault | None = None
    sent: bool = False

    def ask(self, call: GetNextDistCall, probe: Ints) -> None:
        """Have the distribution answer a call. Raises ValueError where it left without."""
        if not self.sent:
            wide = WHOLE in (self.top, call.k)
            self.top = WHOLE if wide else max(self.top, call.k)
            if probe:
                self.probe = tuple(dict.fromkeys((*self.probe, *probe)))
        elif not self.has(call.k) or not set(probe) <= set(self.probe):
            raise ValueError(
                f"the forward of embedding {self.emb} has left with {self.top} tokens of a "
                f"distribution; ask for {call.k} before you wait for anything else"
            )
        self.asked.append(call)

    def has(self, k: int) -> bool:
        """Whether ``k`` tokens of the distribution come."""
        return self.top == WHOLE or (k != WHOLE and k <= self.top)

    def send(self) -> None:
        """No more can be requested. A later call finds the default, as the paper's do."""
        if self.top == -1 and not self.states:
            self.top = TOP
        self.sent = True


@dataclass(eq=False, slots=True)
class Embedding:
    """One embedding: a position with a token or one to be sampled, or the output of a forward."""

    states: bool = False
    token: int = -1
    position: int = 0
    output: TokenOutput | None = None
    future: FutureToken | None = None


class EmbedMap:
    """Embeddings of one program by handle."""

    def __init__(self) -> None:
        self.found: dict[int, Embedding] = {}

    def alloc(self, handles: Sequence[int], states: bool) -> None:
        """Add empty embeddings. Raises ValueError where a handle is in use, or too many are."""
        for handle in handles:
            if handle in self.found:
                raise ValueError(f"embedding {handle} is in use; deallocate it first")
        if len(self.found) + len(handles) > EMBEDDINGS:
            total = len(self.found) + len(handles)
            raise ValueError(f"{total} embeddings are more than {EMBEDDINGS}; deallocate some")
        for handle in handles:
            self.found[handle] = Embedding(states)

    def free(self, handles: Sequence[int]) -> None:
        """Remove embeddings. Raises ValueError where one is unknown; then none is removed."""
        for handle in handles:
            self.get(handle)
        for handle in handles:
            self.found.pop(handle, None)

    def get(self, handle: int) -> Embedding:
        """Return the embedding of a handle. Raises ValueError where there is none."""
        one = self.found.get(handle)
        if one is None:
            raise ValueError(f"there is no embedding {handle}; alloc_emb makes one")
        return one

    def fill(self, handles: Ints, tokens: Ints, positions: Ints) -> None:
        """Put tokens at positions into embeddings. Raises ValueError where a handle has none; then
        nothing has changed."""
        found = [self.get(handle) for handle in handles]
        for one, token, position in zip(found, tokens, positions):
            one.token, one.position, one.output, one.future = token, position, None, None

    def promise(self, handle: int, future: FutureToken, position: int) -> None:
        """A forward is to sample the token of an embedding."""
        one = self.get(handle)
        one.token, one.position, one.output, one.future = -1, position, None, future

    def clear(self, handle: int) -> None:
        """Empty an embedding, if there is one of the handle."""
        if handle in self.found:
            self.found[handle] = Embedding(self.found[handle].states)

    def leave(self, handle: int, position: int) -> TokenOutput:
        """A forward leaves its output for the token at ``position`` in an embedding."""
        one = self.get(handle)
        one.token, one.position, one.future = -1, position + 1, None
        one.output = TokenOutput(handle, one.states)
        return one.output
