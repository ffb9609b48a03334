"""The contract between a model and its worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol

from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.layers.embedding import TokenEmbedding
from sglang.srt.layers.pass_writer import PassWriter, Value
from sglang.srt.layers.weight import LayerWeights, Place, Slots, Stored
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.numeric.host_arrays import Weight
from sglang.srt.numeric.torch_later import Tensor


class Block(LayerWeights, Protocol):
    """One layer of a decoder, with its residual connections."""

    def write(self, w: PassWriter, last: bool) -> None:
        """Say what the layer adds to the stream. ``last``: after its attention only the tokens go
        on whose outputs are wanted (``PassWriter.choose``)."""


class DecoderModel(Protocol):
    """A range of a decoder's layers. The first range embeds the tokens, the last one norms and
    computes logits.

    ``first``, ``last``: the range has the first, the last layer.
    ``sections``: positions have three parts. ``multimodal``: has a vision tower.
    """

    first: bool
    last: bool
    sections: ClassVar[bool]
    multimodal: ClassVar[bool]
    embedding: TokenEmbedding | None
    head: TokenEmbedding | None

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def place(self) -> Place: ...

    def __init__(
        self, spec: ModelSpec, place: Place, length: int, layers: range | None = None
    ) -> None:
        """Layers ``layers`` (all of them by default), for ``length`` positions."""

    @classmethod
    def names(cls, given: Iterable[str]) -> dict[str, str]:
        """The checkpoint's tensor names by ours, for a checkpoint with the tensors ``given``."""

    @staticmethod
    def read(config: Fields, architecture: str) -> ModelSpec:
        """The spec of a checkpoint's config. Raises ValueError."""

    def write(self, w: PassWriter) -> Value:
        """Say the pass: from token ids (the first range) or the states of the range before to
        hidden states [T, width], normed where the range is the last."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Normed hidden states [N, width] of the last range -> [N, vocab]."""

    def adjust(self, scores: Weight) -> Weight:
        """Products with the head [N, vocab] -> logits: a soft cap, a scale. May work in place."""

    def adaptable(self) -> list[tuple[str, Block]]:
        """The layers that adapters may change, each with the prefix of its names in a checkpoint;
        none where the model takes no adapters."""

    def stored(self) -> list[Stored]:
        """Everything with a matrix."""

    def slots(self) -> Slots:
        """Every checkpoint tensor that this range needs."""

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint tensor that has no slot is known to be needless here."""

    def encode(self, media: MediaSpan) -> Tensor:
        """Hidden states [media.count, width] that stand in for the placeholders' embeddings. Raises
        TypeError where the model is not ``multimodal``."""
