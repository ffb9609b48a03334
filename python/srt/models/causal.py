"""CausalLM: what decoder-only models share. Tokens are embedded, go through blocks, and are normed;
logits are products with the output head.

A family says what its blocks are (``block``) and, where they differ from the usual ones, the names
of its weights. A model owns a range of the layers; the first range also embeds the tokens and the
last one norms and computes logits, so a pipeline stage is a model like any other.
"""

from __future__ import annotations

import re
from typing import ClassVar, cast

from torch import Tensor

from srt.attention.base import Attention
from srt.layers.embedding import Embedding
from srt.layers.norm import RMSNorm
from srt.layers.recorder import Recorder
from srt.layers.rotary import Rotary
from srt.layers.step import Step
from srt.layers.weight import Place, Slots, Stored
from srt.models.config import Fields, ModelSpec
from srt.models.model import Block, Recordable


class CausalLM:
    """Implements ``models.model.Model``; see there for what the methods promise."""

    recordable: ClassVar[bool] = True
    # Names of the weights in a checkpoint.
    EMBEDDING: ClassVar[str] = "model.embed_tokens.weight"
    LAYERS: ClassVar[str] = "model.layers."
    NORM: ClassVar[str] = "model.norm.weight"
    HEAD: ClassVar[str] = "lm_head.weight"

    def __init__(
        self, spec: ModelSpec, place: Place, length: int, layers: range | None = None
    ) -> None:
        self.spec, self.place = spec, place
        self.owned = range(spec.num_layers) if layers is None else layers
        self.first, self.last = self.owned.start == 0, self.owned.stop == spec.num_layers
        self.rotary = Rotary(spec.rope, spec.head_dim, length, place.states, place.device)
        self.layers = [self.block(n, i) for i, n in enumerate(self.owned)]
        width = spec.hidden_size
        embeds = self.first or (self.last and spec.tied)
        self.embedding = Embedding(spec.vocab_size, width, place) if embeds else None
        self.norm = RMSNorm(width, spec.eps, place) if self.last else None
        self.head = self.embedding if spec.tied else None
        if self.last and not spec.tied:
            self.head = Embedding(spec.vocab_size, width, place)

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        raise NotImplementedError

    def block(self, layer: int, index: int) -> Block:
        """Layer ``layer`` of the model, the one with number ``index`` here and among the pools."""
        raise NotImplementedError

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids [T] -> [T, width], as the first block wants them."""
        assert self.embedding is not None
        return self.embedding(tokens)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        if self.first:
            x = self.embed(x)
        return self.compute(x, positions, attention)

    def compute(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """``forward`` behind the embedding."""
        step = Step(positions, attention)
        for layer in self.layers:
            x = layer(x, step)
        return x if self.norm is None else self.norm(x)

    def record(self, tape: Recorder) -> None:
        assert self.embedding is not None
        assert self.norm is not None
        x = self.embedding.record(tape)
        for layer in self.layers:
            x = cast(Recordable, layer).record(tape, x, last=layer is self.layers[-1])
        tape.norm(self.norm.record(x))

    def stored(self) -> list[Stored]:
        out: list[Stored] = [m for m in (self.embedding, self.head) if m is not None]
        for layer in self.layers:
            out += layer.stored()
        return list(dict.fromkeys(out))

    def logits(self, hidden: Tensor) -> Tensor:
        assert self.head is not None
        return self.head.logits(hidden)

    def slots(self) -> Slots:
        out: Slots = {}
        if self.embedding is not None:
            out |= self.embedding.slots(self.EMBEDDING)
        for n, layer in zip(self.owned, self.layers):
            out |= layer.slots(f"{self.LAYERS}{n}.")
        if self.norm is not None:
            out |= self.norm.slots(self.NORM)
        if self.head is not None and self.head is not self.embedding:
            out |= self.head.slots(self.HEAD)
        return out

    def ignores(self, name: str) -> bool:
        if name.endswith(".rotary_emb.inv_freq"):
            return True
        if name == self.HEAD:
            return self.spec.tied or not self.last
        if name in (self.EMBEDDING, self.NORM):
            return name not in self.slots()
        layer = re.match(rf"{re.escape(self.LAYERS)}(\d+)\.", name)
        others = set(range(self.spec.num_layers)) - set(self.owned)
        return layer is not None and int(layer[1]) in others
