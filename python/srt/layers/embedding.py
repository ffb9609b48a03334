"""Token embedding and output head, split over the vocabulary."""

from __future__ import annotations

from sglang.srt.layers.weight import Place, Slot, Slots, Stored
from sglang.srt.numeric.torch_later import F, Tensor


class TokenEmbedding(Stored):
    """A table of ``vocab`` rows; each rank of the group holds a range of them, all of one size: the
    last ones are padded with zeros.

    The same table serves as the output head where the model ties the two.
    """

    def __init__(self, vocab: int, width: int, place: Place) -> None:
        self.group, self.shape = place.group, (vocab, width)
        rows, self.first, self.count = place.group.rows(vocab)
        self.weight = place.empty(rows, width)
        self.weight[self.count :] = 0

    def rows(self, ids: Tensor) -> Tensor:
        """Indices [T] of this rank's rows -> [T, width]."""
        if self.packed is not None:
            found: Tensor = self.packed.rows(ids, self.threads)
            return found
        return F.embedding(ids, self.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, width] -> [T, vocab], gathered from all ranks."""
        return self.gathered(self.product(hidden))

    def gathered(self, scores: Tensor) -> Tensor:
        """Products of this rank's rows [T, rows] -> those of all rows [T, vocab]."""
        if self.group.size == 1:
            return scores
        return self.group.all_gather(scores)[:, : self.shape[0]]

    def slots(self, name: str) -> Slots:
        return {name: Slot(self.weight[: self.count], self.shape, 0, self.first)}
