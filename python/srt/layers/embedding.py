"""Token embedding and output head, split over the vocabulary."""

from __future__ import annotations

import torch.nn.functional as F
from sglang.srt.layers.tape_recorder import TapeRecorder
from sglang.srt.layers.weight import Place, Slot, Slots, Stored
from torch import Tensor


class TokenEmbedding(Stored):
    """A table of ``vocab`` rows; each rank of the group holds an equal range of them.

    The same table serves as the output head where the model ties the two.
    """

    def __init__(self, vocab: int, width: int, place: Place) -> None:
        self.group, self.shape = place.group, (vocab, width)
        rows = place.group.share(vocab, "the vocabulary size")
        self.first = rows * place.group.rank
        self.weight = place.empty(rows, width)

    def __call__(self, ids: Tensor) -> Tensor:
        """Token ids [T] -> [T, width]. Ids of other ranks' rows add zero before the sum."""
        if self.packed is not None:
            return self.packed.rows(ids, self.threads)
        if self.group.size == 1:
            return F.embedding(ids, self.weight)
        local = ids - self.first
        mine = (local >= 0) & (local < self.weight.shape[0])
        x = F.embedding(local.where(mine, 0), self.weight)
        return self.group.all_reduce(x * mine.unsqueeze(-1))

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, width] -> [T, vocab], gathered from all ranks."""
        return self.group.all_gather(self.product(hidden))

    def record(self, tape: TapeRecorder, scale: float = 1.0) -> int:
        """The tokens' rows, scaled: the buffer that becomes the residual stream."""
        return tape.embed(self, scale)

    def slots(self, name: str) -> Slots:
        return {name: Slot(self.weight, self.shape, 0, self.first)}
