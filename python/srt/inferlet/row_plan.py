"""RowPlan: one ``forward`` of a program, from its call to the engine's verbs.

A forward whose program reads distributions after several of its tokens leaves as one verb for each
of them: all KV of a pass is written before any of it is read, so they share a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.space_messages import ForwardTokens
from sglang.srt.inferlet.calls import ForwardCall, ForwardWithSamplingCall
from sglang.srt.inferlet.embed_map import EmbedMap, TokenOutput
from sglang.srt.inferlet.future_token import FutureToken
from sglang.srt.inferlet.packed_numbers import unpacked
from sglang.srt.inferlet.page_map import PageMap

NONE = ints()
_DIGITS = bytes.maketrans(b"\0\1", b"01")


@dataclass(eq=False, slots=True)
class Sampling:
    """Sampling of a token after the last one; ``call`` waits for it, and later forwards may begin
    with ``future``."""

    call: int
    params: SamplingParams
    uniform: float
    history: Ints
    allowed: bytes
    future: FutureToken | None = None


@dataclass(eq=False, slots=True)
class RowPlan:
    """A forward.

    Attributes:
        tokens, positions: of its embeddings; a token that is read from a state, or still to be
            sampled, is 0.
        visible: slots that all tokens see.
        written: a slot for each token, or none.
        read: (index, embedding) of the tokens whose embedding is a state.
        outputs: of the last tokens.
        mask: for each token what it sees of ``visible`` and the tokens; None: all before it.
        follows: the first token, where an earlier forward is to sample it.
    """

    tokens: Ints
    positions: Ints
    visible: Ints
    written: Ints
    read: tuple[tuple[int, int], ...] = ()
    outputs: list[TokenOutput] = field(default_factory=list)
    mask: list[list[bool]] | None = None
    sampling: Sampling | None = None
    priority: int = 0
    follows: FutureToken | None = None

    @property
    def future(self) -> FutureToken | None:
        """The token that later forwards may begin with."""
        return None if self.sampling is None else self.sampling.future

    def verbs(
        self, space: int, ends: Sequence[int], requests: Sequence[int]
    ) -> list[ForwardTokens]:
        """The verbs, in order, with their requests; what is read is after the last token of
        each. ``ends``: as ``ends`` gives them."""
        if len(ends) == 1:
            return [self._verb(space, requests[0], 0, ends[0])]
        out, start = [], 0
        for end, request in zip(ends, requests):
            out.append(self._verb(space, request, start, end))
            start = end
        return out

    def ends(self) -> list[int]:
        """The index after the last token of each verb. Raises ValueError where several verbs
        would need KV that is kept nowhere."""
        count = len(self.tokens)
        if not self.outputs:
            return [count]
        first = count - len(self.outputs)
        ends = [first + i + 1 for i, one in enumerate(self.outputs) if one.top != -1]
        if not ends or ends[-1] != count:
            ends.append(count)
        if len(ends) > 1 and not self.written:
            raise ValueError(
                "distributions after several tokens of one forward need okv for their KV"
            )
        if len(ends) > 1 and self.follows and self.sampling and self.sampling.params.penalised:
            raise ValueError(
                "penalties would lack the token that this forward begins with; ask for no "
                "distributions behind tokens before its last one"
            )
        return ends

    def output(self, end: int) -> TokenOutput | None:
        """The output after the token before ``end``; None: nothing is read there."""
        index = end - 1 - (len(self.tokens) - len(self.outputs))
        return self.outputs[index] if index >= 0 else None

    def _verb(self, space: int, request: int, start: int, end: int) -> ForwardTokens:
        output = self.output(end)
        tokens, positions, written = self.tokens, self.positions, self.written
        sampling, visible = self.sampling, self.visible
        if start or end < len(tokens):
            sampling = sampling if end == len(tokens) else None
            visible = visible + written[:start] if start else visible
            tokens, positions = tokens[start:end], positions[start:end]
            written = written[start:end]
        options: dict[str, Any] = {}
        history = NONE if sampling is None else sampling.history
        if self.follows is not None and not start:
            if self.follows.token < 0:
                options["follows"] = self.follows.request
            else:
                first = ints([self.follows.token])
                tokens, history = first + tokens[1:], history + first
        if output is not None:
            options["top"], options["probe"] = output.top, output.probe
            options["keep"] = self._kept(start, end)
        if sampling is not None:
            options["sample"], options["uniform"] = sampling.params, sampling.uniform
            options["history"], options["allowed"] = history.tobytes(), sampling.allowed
        if self.read:
            options["read"] = tuple((i - start, emb) for i, emb in self.read if start <= i < end)
        return ForwardTokens(
            space,
            request,
            tokens.tobytes(),
            b"" if _counted(positions, len(visible)) else positions.tobytes(),
            visible.tobytes(),
            written.tobytes(),
            self._bits(start, end),
            priority=self.priority,
            **options,
        )

    def _kept(self, start: int, end: int) -> tuple[int, ...]:
        """Embeddings that receive the states of the last tokens before ``end``."""
        first = len(self.tokens) - len(self.outputs)
        own = self.outputs[max(0, start - first) : max(0, end - first)]
        return tuple(one.emb for one in own) if any(one.states for one in own) else ()

    def _bits(self, start: int, end: int) -> bytes:
        if self.mask is None:
            return b""
        width = len(self.visible) + end
        return b"".join(_packed(row[:width]) for row in self.mask[start:end])


def _packed(row: list[bool]) -> bytes:
    """Entries of a mask as bits, the first one lowest."""
    digits = bytes(row).translate(_DIGITS)[::-1]
    return int(digits or b"0", 2).to_bytes((len(row) + 7) // 8, "little")


def _counted(positions: Ints, first: int) -> bool:
    """Whether positions are those from ``first`` on, each one more than the one before."""
    if len(positions) == 1:
        return positions[0] == first
    return positions == ints(range(first, first + len(positions)))


def plan(
    call: ForwardCall, pages: PageMap, embeds: EmbedMap, sampling: Sampling | None, priority: int
) -> RowPlan:
    """The forward of a call; from now on its slots hold KV, its outputs belong to it, and a token
    that it names for later forwards is theirs.

    Raises ValueError, before anything has changed.
    """
    iemb, oemb = unpacked(call.iemb), unpacked(call.oemb) if call.oemb else ()
    count = len(iemb)
    if not count:
        raise ValueError("iemb is empty; a forward computes at least one embedding")
    if len(oemb) > count:
        raise ValueError(f"oemb has {len(oemb)} entries and iemb {count}; give at most as many")
    tokens, positions, read, follows = _inputs(iemb, embeds, call.queue)
    for handle in oemb:
        embeds.get(handle)
    named = call.future if isinstance(call, ForwardWithSamplingCall) else None
    if named is not None:
        embeds.get(named)
        if named in oemb:
            raise ValueError(f"embedding {named} is in oemb and is future; take two")
    visible = pages.visible(call.ikv)
    mask = _mask(call, len(visible), count)
    written = pages.take(unpacked(call.okv), count) if call.okv else ints()
    outputs = [
        embeds.leave(handle, positions[count - len(oemb) + i]) for i, handle in enumerate(oemb)
    ]
    if named is not None and sampling is not None and sampling.future is not None:
        embeds.promise(named, sampling.future, positions[-1] + 1)
    return RowPlan(
        tokens, positions, visible, written, read, outputs, mask, sampling, priority, follows
    )


def _inputs(
    iemb: Sequence[int], embeds: EmbedMap, queue: int
) -> tuple[Ints, Ints, tuple[tuple[int, int], ...], FutureToken | None]:
    """Tokens, positions and states of embeddings, and the token that the first one is to have."""
    tokens, positions = ints(), ints()
    read: list[tuple[int, int]] = []
    follows = None
    for index, handle in enumerate(iemb):
        one = embeds.get(handle)
        if one.output is not None:
            if not one.states:
                raise ValueError(
                    f"embedding {handle} keeps no hidden state; allocate it with states=True"
                )
            read.append((index, handle))
        elif one.future is not None:
            one.future.verify(handle, index, one.position, queue)
            follows = one.future
        elif one.token < 0:
            raise ValueError(f"embedding {handle} is empty; embed_txt fills it")
        tokens.append(one.token if one.token > 0 else 0)
        positions.append(one.position)
    return tokens, positions, tuple(read), follows


def _mask(call: ForwardCall, visible: int, count: int) -> list[list[bool]] | None:
    if call.mask is None:
        return None
    if len(call.mask) != count:
        raise ValueError(f"mask has {len(call.mask)} rows and iemb {count} entries; give as many")
    width = visible + count
    for index, row in enumerate(call.mask):
        if len(row) != width:
            raise ValueError(
                f"row {index} of mask has {len(row)} entries; it needs {width}: "
                f"{visible} visible slots of ikv, then {count} of iemb"
            )
    return call.mask
