"""CausalLM: the base of decoder-only models. Tokens are embedded, go through blocks and are normed;
logits are products with the output head.

A family says what its blocks are (``block``) and, where they differ from the usual ones, the names
of its weights. A model owns a range of the layers; the first range also embeds the tokens and the
last one norms and computes logits, so a pipeline stage is a model like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.layers.embedding import TokenEmbedding
from sglang.srt.layers.norm import LayerNorm, RMSNorm
from sglang.srt.layers.pass_writer import PassWriter, Value
from sglang.srt.layers.rotary import Rotary
from sglang.srt.layers.weight import Place, Slots, Stored
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.decoder_model import Block
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.numeric.host_arrays import Weight
from sglang.srt.numeric.torch_later import Tensor


class CausalLM:
    """Implements ``models.decoder_model.DecoderModel``, which documents the methods."""

    sections: ClassVar[bool] = False
    multimodal: ClassVar[bool] = False
    # Names of the weights in a checkpoint; a checkpoint may leave the prefix out.
    PREFIX: ClassVar[str] = "model."
    EMBEDDING: ClassVar[str] = "model.embed_tokens.weight"
    LAYERS: ClassVar[str] = "model.layers."
    NORM: ClassVar[str] = "model.norm.weight"
    HEAD: ClassVar[str] = "lm_head.weight"
    # Other names of some tensors in checkpoints, whole names.
    ALIASES: ClassVar[Mapping[str, str]] = {}
    # Ends of the names of needless tensors that old releases saved.
    BUFFERS: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq",)

    def __init__(
        self, spec: ModelSpec, place: Place, length: int, layers: range | None = None
    ) -> None:
        self.spec, self.place = spec, place
        self.owned = range(spec.num_layers) if layers is None else layers
        self.first, self.last = self.owned.start == 0, self.owned.stop == spec.num_layers
        self.rotary = Rotary(spec.rope, spec.head_dim, length, place.states, place.device)
        self.local_rotary = self.rotary
        if spec.local_rope is not None:
            self.local_rotary = Rotary(
                spec.local_rope, spec.head_dim, length, place.states, place.device
            )
        self.layers = [self.block(n, i) for i, n in enumerate(self.owned)]
        width = spec.hidden_size
        embeds = self.first or (self.last and spec.tied)
        self.embedding = TokenEmbedding(spec.vocab_size, width, place) if embeds else None
        self.norm = self.final_norm() if self.last else None
        self.head = self.embedding if spec.tied else None
        if self.last and not spec.tied:
            self.head = TokenEmbedding(spec.outputs, width, place)

    @classmethod
    def names(cls, given: Iterable[str]) -> dict[str, str]:
        """The checkpoint's tensor names by ours, for a checkpoint with the tensors ``given``. One
        that was saved without a head leaves out the prefix."""
        given = list(given)
        bare = not any(name.startswith(cls.PREFIX) for name in given)
        names = {cls.ALIASES.get(name, name): name for name in given}
        if bare:
            names = {n if n == cls.HEAD else f"{cls.PREFIX}{n}": old for n, old in names.items()}
        return names

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        raise NotImplementedError

    def block(self, layer: int, index: int) -> Block:
        """Layer ``layer`` of the model, the one with number ``index`` here and among the pools."""
        raise NotImplementedError

    def rotary_of(self, layer: int) -> Rotary:
        """Layers with a window may have another than those that see everything."""
        return self.local_rotary if self.spec.windows[layer] else self.rotary

    def final_norm(self) -> RMSNorm | LayerNorm:
        """Make the norm that stands after the last layer."""
        return RMSNorm(self.spec.hidden_size, self.spec.eps, self.place)

    @property
    def embedding_scale(self) -> float:
        """Times a token's row of the table."""
        return 1.0

    def write(self, w: PassWriter) -> Value:
        if self.first:
            self.write_embedding(w)
        else:
            w.input(self.spec.hidden_size)
        for layer in self.layers:
            layer.write(w, last=self.last and layer is self.layers[-1])
        return w.end(self.norm)

    def write_embedding(self, w: PassWriter) -> None:
        """Say how the stream begins."""
        assert self.embedding is not None
        w.embed(self.embedding, self.embedding_scale)

    def stored(self) -> list[Stored]:
        out: list[Stored] = [m for m in (self.embedding, self.head) if m is not None]
        for layer in self.layers:
            out += layer.stored()
        return list(dict.fromkeys(out))

    def adaptable(self) -> list[tuple[str, Block]]:
        return [(f"{self.LAYERS}{n}.", layer) for n, layer in zip(self.owned, self.layers)]

    def logits(self, hidden: Tensor) -> Tensor:
        assert self.head is not None
        found: Tensor = self.adjust(self.head.logits(hidden))
        return found

    def adjust(self, scores: Weight) -> Weight:
        """Logits from the products with the head; unchanged in most families."""
        return scores

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
        if name.endswith(self.BUFFERS):
            return True
        if name == self.HEAD:
            return self.spec.tied or not self.last
        if name in (self.EMBEDDING, self.NORM):
            return name not in self.slots()
        layer = re.match(rf"{re.escape(self.LAYERS)}(\d+)\.", name)
        others = set(range(self.spec.num_layers)) - set(self.owned)
        return layer is not None and int(layer[1]) in others

    def encode(self, media: MediaSpan) -> Tensor:
        raise TypeError(f"{type(self).__name__} has no vision tower.")
