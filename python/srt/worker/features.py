"""Features: hidden states of images and videos, which replace the embeddings of placeholder tokens.
They are computed once and cached up to a number of bytes."""

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
    """LRU cache of hidden states by media key. The newest entry stays, whatever its size.

    ``bytes``: size of all entries. ``most_bytes``: limit of that size.
    """

    def __init__(self, encode: Encode, most_bytes: int) -> None:
        self.bytes = 0
        self._encode, self._most = encode, most_bytes
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()

    def embed(
        self, batch: Batch, inputs: Inputs, outputs: Sequence[RowOutput]
    ) -> tuple[Inputs, tuple[int, int]]:
        """Return the inputs with hidden states for the placeholders, and two counts: media that
        were encoded, and media that were cached. A batch encodes each medium at most once. If that
        fails, the outputs of its rows get an error."""
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
        """Return the hidden states of ``media`` [count, width], or the error that prevents them."""
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
        except Exception as error:  # only the requests with this medium fail
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
