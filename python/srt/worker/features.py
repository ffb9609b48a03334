"""Features: hidden states of images and videos, which stand in place of their placeholders'
embeddings; encoded once and kept while there is room."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from sglang.srt.core.batch import Batch, RowOutput
from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.numeric.torch_later import Tensor, torch
from sglang.srt.worker.inputs import Embedded, Inputs

log = logging.getLogger("sglang.srt.worker")
Encode: TypeAlias = Callable[[MediaSpan], Tensor]


class Features:
    """Kept by their media's key, those used last; one at least, however large.

    ``bytes``: of what is kept.
    """

    def __init__(self, encode: Encode, most_bytes: int) -> None:
        self.bytes = 0
        self._encode, self._most = encode, most_bytes
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()

    def embed(
        self, batch: Batch, inputs: Inputs, outputs: Sequence[RowOutput]
    ) -> tuple[Inputs, tuple[int, int]]:
        """The inputs with what stands in place of the placeholders' embeddings, and how many media
        were encoded and how many were here. A medium is encoded at most once for a batch; where it
        cannot be, the row's output says so."""
        found: dict[bytes, Tensor | str] = {}
        encoded = 0
        places, states = [], []
        for row, output, first in zip(batch.rows, outputs, inputs.firsts.tolist()):
            for piece in row.pieces:
                key = piece.media.key
                if key not in found:
                    encoded += key not in self._kept
                    found[key] = self._of(piece.media)
                got = found[key]
                if isinstance(got, str):
                    output.error, output.unseen = got, (*output.unseen, key)
                    continue
                start = first + piece.at
                places.append(np.arange(start, start + piece.count, dtype=np.int32))
                states.append(got[piece.skip : piece.skip + piece.count])
        counts = (encoded, len(found) - encoded)
        if not places:
            return inputs, counts
        embedded = Embedded(np.concatenate(places), torch.cat(states))
        return replace(inputs, embedded=embedded), counts

    def _of(self, media: MediaSpan) -> Tensor | str:
        """Hidden states [count, width], or why there are none."""
        kept = self._kept.get(media.key)
        if kept is not None:
            self._kept.move_to_end(media.key)
            return kept
        try:
            states = self._encode(media)
            if states.shape[0] != media.count:
                raise ValueError(f"{states.shape[0]} hidden states for {media.count} tokens")
            if not bool(states.isfinite().all()):
                raise ValueError("its hidden states are not finite")
        except Exception as error:  # the requests that need this one fail
            log.exception("an %s could not be encoded", media.kind)
            return f"the {media.kind} could not be encoded: {type(error).__name__}: {error}"
        self._keep(media.key, states)
        return states

    def _keep(self, key: bytes, states: Tensor) -> None:
        self._kept[key] = states
        self.bytes += states.nbytes
        while self.bytes > self._most and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= oldest.nbytes
