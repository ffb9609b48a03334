"""Context: a token sequence with two watermarks, the basic abstraction of the engine.

    0 <= ready <= saved <= len(tokens)

KV of ``[0, ready)`` is on the device, KV of ``[ready, saved)`` in a lower tier; tokens
``[saved, len)`` are *work*: their KV must be computed. Today ``ready == saved``: a pass that needs
KV from host memory copies it first. Prefill and decode differ only in the number of tokens of work.

    event                                   effect
    append, tool result, jump-forward       len grows
    truncate, rejected speculation          len shrinks; ready, saved <= len
    forward pass                            ready = saved grows
    prefix hit                              ready = saved = match
    discard, retract                        ready = saved = 0 (the KV stays in the radix cache)
    fork                                    the tokens are copied, the KV is matched in the cache

Only ``memory/store`` changes a context.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sglang.srt.core.media_marks import Medias
from sglang.srt.core.namespace import BASE, Namespace
from sglang.srt.core.segments import Segments, key

if TYPE_CHECKING:
    from sglang.srt.core.ints import Ints


def _empty() -> Ints:
    return array("i")


@dataclass(slots=True, eq=False)
class Context:
    """One token sequence and the location of its KV.

    Attributes:
        id: number chosen by the client, unique among open contexts.
        tokens: token ids, int32.
        namespace: contexts share KV only within a namespace.
        segments: texts encoded side by side (``core/segments``), () in a plain context.
        media: images and videos among the tokens (``core/media_marks``); a cut may have removed
            the end of the last one.
        head: the tokens up to the end of the media, with marks in place of placeholders.
        ready: number of leading tokens whose KV is on the device.
        saved: number of leading tokens whose KV is on the device or in a lower tier.
        checked: number of leading tokens that were found to be ids of the vocabulary.
        pages: page table; page ``i`` holds tokens ``[i * page_size, (i + 1) * page_size)``.
        sent: number of leading entries of the page table that the worker has and that are current.
        shared: number of leading pages that the radix tree owns; the context owns the rest.
        lock: the locked radix node; None while the context holds nothing.
    """

    id: int
    tokens: Ints
    namespace: Namespace = BASE
    segments: Segments = ()
    media: Medias = ()
    head: Ints = field(default_factory=_empty)
    ready: int = 0
    saved: int = 0
    checked: int = 0
    pages: Ints = field(default_factory=_empty)
    sent: int = 0
    shared: int = 0
    lock: object | None = None

    @property
    def key(self) -> Ints:
        """Key of the context's KV in the radix tree, one number per token."""
        head = self.head
        return key(head + self.tokens[len(head) :] if head else self.tokens, self.segments)

    @property
    def tail(self) -> int:
        """Index of the last segment's first token; tokens from there on see all tokens before."""
        return self.segments[-1].start if self.segments else 0

    @property
    def work(self) -> int:
        """Tokens whose KV is still to be computed."""
        return len(self.tokens) - self.saved

    @property
    def active(self) -> bool:
        """Whether the context holds device memory (a lock, pages or both)."""
        return self.lock is not None
