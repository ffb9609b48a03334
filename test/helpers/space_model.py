"""SpaceModel: an engine of spaces over a model of transformers, dense, one row at a time.

Independent of the engine: keys and values are kept by slot, gathered for each forward, and masked
by a 4D mask. The verbs of one ``send`` count as one pass, but a forward that begins with a token of
another one counts as a pass behind that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.core.ints import from_bytes, ints
from sglang.srt.core.space_messages import (
    UNANSWERED,
    WHOLE,
    AllocPages,
    CloseSpace,
    CopyTokens,
    ExportPages,
    ForwardDone,
    ForwardTokens,
    FreePages,
    ImportPages,
    ListExports,
    OpenSpace,
    PrefixPages,
    ReleaseExport,
    SpaceEvent,
    SpaceFailed,
    SpaceReply,
)
from transformers import DynamicCache

Page = list[Any]  # for each slot: layers of (keys, values), or None


class SpaceModel:
    """Implements ``held_space.Link``.

    Attributes:
        passes: number of passes.
        sampled: tokens by space and request.
        tokens: tokens computed, by forwards and prefixes.
        spaces: pages of each open space by handle.
    """

    def __init__(self, model: Any, page_size: int = 1) -> None:
        self.model, self.page_size = model.eval(), page_size
        self.passes = self.tokens = 0
        self.spaces: dict[int, dict[int, Page]] = {}
        self.exports: dict[str, list[Page]] = {}
        self.states: dict[tuple[int, int], torch.Tensor] = {}
        self.sampled: dict[tuple[int, int], int] = {}
        self._prefixes: dict[tuple[int, ...], Page] = {}
        self._listeners: dict[int, Callable[[SpaceEvent], None]] = {}
        self._ids = 0

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    def listen(self, space: int, listener: Callable[[SpaceEvent], None]) -> None:
        self._listeners[space] = listener

    def unlisten(self, space: int) -> None:
        self._listeners.pop(space, None)

    def send(self, *verbs: Any) -> None:
        asyncio.get_running_loop().call_soon(self._take, verbs)

    def _take(self, verbs: Sequence[Any]) -> None:
        depths: dict[tuple[int, int], int] = {}
        for verb in verbs:
            if isinstance(verb, ForwardTokens):
                before = depths.get((verb.space, verb.follows), 0)
                depths[verb.space, verb.request] = before + 1
        self.passes += max(depths.values(), default=0)
        for verb in verbs:
            event = None
            try:
                event = getattr(self, type(verb).__name__)(verb)
            except (ValueError, KeyError) as error:
                request = getattr(verb, "request", UNANSWERED)
                event = SpaceFailed(verb.space, request, "invalid", str(error))
            if event is not None and verb.space in self._listeners:
                asyncio.get_running_loop().call_soon(self._listeners[verb.space], event)

    def OpenSpace(self, verb: OpenSpace) -> None:
        self.spaces[verb.space] = {}

    def CloseSpace(self, verb: CloseSpace) -> None:
        del self.spaces[verb.space]

    def AllocPages(self, verb: AllocPages) -> None:
        pages = self.spaces[verb.space]
        for handle in from_bytes(verb.handles):
            if handle in pages:
                raise ValueError(f"handle {handle} is in use")
            pages[handle] = [None] * self.page_size

    def FreePages(self, verb: FreePages) -> None:
        for handle in from_bytes(verb.handles):
            del self.spaces[verb.space][handle]

    def CopyTokens(self, verb: CopyTokens) -> None:
        found = [self._slot(verb.space, slot) for slot in from_bytes(verb.sources)]
        for slot, value in zip(from_bytes(verb.targets), found):
            self._put(verb.space, slot, value)

    def ExportPages(self, verb: ExportPages) -> SpaceReply:
        if verb.name in self.exports:
            raise ValueError(f"there is an export {verb.name}")
        pages = [self.spaces[verb.space][handle] for handle in from_bytes(verb.handles)]
        self.exports[verb.name] = pages
        return SpaceReply(verb.space, verb.request, len(pages))

    def ImportPages(self, verb: ImportPages) -> SpaceReply:
        pages = self.exports[verb.name]
        self.spaces[verb.space] |= {verb.first + i: page for i, page in enumerate(pages)}
        return SpaceReply(verb.space, verb.request, len(pages))

    def ReleaseExport(self, verb: ReleaseExport) -> SpaceReply:
        del self.exports[verb.name]
        return SpaceReply(verb.space, verb.request)

    def ListExports(self, verb: ListExports) -> SpaceReply:
        names = tuple(sorted(one for one in self.exports if one.startswith(verb.prefix)))
        return SpaceReply(verb.space, verb.request, names=names)

    def PrefixPages(self, verb: PrefixPages) -> SpaceReply:
        tokens = tuple(from_bytes(verb.tokens))
        size = self.page_size
        count = len(tokens) // size
        for i in range(count):
            key = tokens[: (i + 1) * size]
            page = self._prefixes.setdefault(key, [None] * size)
            self.spaces[verb.space][verb.first + i] = page
            if None in page:
                slots = ints(range(verb.first * size, (verb.first + i) * size))
                own = ints(range((verb.first + i) * size, (verb.first + i + 1) * size))
                self.compute(verb.space, ints(key[i * size :]), range(i * size, i * size + size),
                             slots, own)  # fmt: skip
        return SpaceReply(verb.space, verb.request, count)

    def ForwardTokens(self, verb: ForwardTokens) -> ForwardDone | None:
        tokens, visible = from_bytes(verb.tokens), from_bytes(verb.visible)
        start = len(visible)
        if verb.follows != UNANSWERED:
            tokens = ints([self.sampled[verb.space, verb.follows]]) + tokens[1:]
        positions = from_bytes(verb.positions) or ints(range(start, start + len(tokens)))
        logits, hidden = self.compute(
            verb.space, tokens, positions, visible, from_bytes(verb.written), verb.mask,
            {index: self.states[verb.space, slot] for index, slot in verb.read},
        )  # fmt: skip
        for slot, state in zip(verb.keep, hidden[len(tokens) - len(verb.keep) :]):
            self.states[verb.space, slot] = state
        if verb.request == UNANSWERED:
            return None
        logprobs = torch.log_softmax(logits[-1].float(), -1)
        token = self._sample(verb, logits[-1].float()) if verb.sample is not None else -1
        self.sampled[verb.space, verb.request] = token
        top, ids = logprobs, torch.zeros(0, dtype=torch.int32)
        if verb.top != WHOLE:
            top, ids = logprobs.topk(max(verb.top, 0))
        return ForwardDone(
            verb.space,
            verb.request,
            token,
            float(logprobs[token]) if token >= 0 else 0.0,
            ids.to(torch.int32).numpy().tobytes(),
            top.numpy().tobytes() if verb.top != -1 else b"",
            logprobs[list(verb.probe)].numpy().tobytes(),
        )

    @torch.no_grad()
    def compute(
        self,
        space: int,
        tokens: Sequence[int],
        positions: Sequence[int],
        visible: Sequence[int],
        written: Sequence[int],
        mask: bytes = b"",
        states: dict[int, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits, last hidden states) of tokens behind slots."""
        count, start = len(tokens), len(visible)
        self.tokens += count
        seen = torch.ones(count, start + count, dtype=torch.bool).tril(start)
        width = (start + count + 7) // 8
        for i in range(count if mask else 0):
            bits = int.from_bytes(mask[i * width : (i + 1) * width], "little")
            for j in range(start + i):
                seen[i, j] = bool(bits >> j & 1)
        cache: Any = DynamicCache(config=self.model.config)
        held = [self._slot(space, slot) for slot in visible]
        for layer in range(self.model.config.num_hidden_layers if held else 0):
            keys = torch.stack([one[layer][0] for one in held], 1)[None]
            values = torch.stack([one[layer][1] for one in held], 1)[None]
            cache.update(keys, values, layer)
        embeds = self.model.get_input_embeddings()(torch.tensor([list(tokens)]))
        for index, state in (states or {}).items():
            embeds[0, index] = state
        bias = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        out = self.model(
            inputs_embeds=embeds, position_ids=torch.tensor([list(positions)]),
            attention_mask=bias[None, None], past_key_values=cache, use_cache=True,
            output_hidden_states=True,
        )  # fmt: skip
        for i, slot in enumerate(written):
            value = [(layer.keys[0, :, start + i], layer.values[0, :, start + i])
                     for layer in cache.layers]  # fmt: skip
            self._put(space, slot, value)
        return out.logits[0], out.hidden_states[-1][0]

    def _sample(self, verb: Any, logits: torch.Tensor) -> int:
        if verb.allowed:
            bits = int.from_bytes(verb.allowed, "little")
            allowed = [i for i in range(len(logits)) if bits >> i & 1]
            masked = torch.full_like(logits, -torch.inf)
            masked[allowed] = logits[allowed]
            logits = masked
        assert verb.sample is not None
        if verb.sample.temperature < 1e-6:
            return int(logits.argmax())
        probs = torch.softmax(logits.double() / verb.sample.temperature, -1).cumsum(-1)
        return int(torch.searchsorted(probs, verb.uniform * float(probs[-1]), right=True))

    def _slot(self, space: int, slot: int) -> Any:
        value = self.spaces[space][slot // self.page_size][slot % self.page_size]
        if value is None:
            raise ValueError(f"slot {slot} holds no KV")
        return value

    def _put(self, space: int, slot: int, value: Any) -> None:
        self.spaces[space][slot // self.page_size][slot % self.page_size] = value
