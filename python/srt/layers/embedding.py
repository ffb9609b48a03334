"""Token embedding and output head, split over the vocabulary."""

from __future__ import annotations

from sglang.srt.layers.weight import Place, Slot, Slots, Stored
from sglang.srt.numeric.torch_later import F, Tensor


class TokenEmbedding(Stored):
    """A table of ``vocab`` rows. Each rank of the group holds a range of rows. Ranges have the same
    size: the last ranks' are padded with zeros.

    In a model with tied embedding, the table is also the output head.
    """

    def __init__(self, vocab: int, width: int, place: Place) -> None:
        self.group, self.shape = place.group, (vocab, width)
        rows, self.first, self.count = place.group.rows(vocab)
        self.weight = place.empty(rows, width)
        self.weight[self.count :] = 0

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows [T, width] at ``ids`` [T], indices into this rank's part of the table."""
        if self.packed is not None:
            found: Tensor = self.packed.rows(ids, self.threads)
            return found
        return F.embedding(ids, self.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [T, vocab] of hidden states [T, width], gathered from all ranks."""
        return self.gathered(self.product(hidden))

    def gathered(self, scores: Tensor) -> Tensor:
        """Gather all ranks' logits [T, vocab]. ``scores``: this rank's logits [T, rows]."""
        if self.group.size == 1:
            return scores
        return self.group.all_gather(scores)[:, : self.shape[0]]

    def slots(self, name: str) -> Slots:
        return {name: Slot(self.weight[: self.count], self.shape, 0, self.first)}
