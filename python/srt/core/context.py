"""Context: a token sequence with two watermarks, the one abstraction everything else stands on.

    0 <= ready <= saved <= len(tokens)

KV of ``[0, ready)`` is on the device, ``[ready, saved)`` in a lower tier, ``[saved, len)`` is work.
Today ``ready == saved`` always: a pass that needs KV of host memory copies it to the device first.
There is no prefill and no decode: a decode step is one token of work, a prefill chunk is many.

    event                                   effect
    append, tool result, jump-forward       len grows
    truncate, rejected speculation          len shrinks, the others are clipped
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
    """One token sequence and where its KV lives.

    Attributes:
        id: chosen by the program that opened it, unique among open contexts.
        tokens: token ids, int32.
        namespace: contexts share KV only within one.
        segments: texts encoded side by side (``core/segments``), () in a plain context.
        media: images and videos among the tokens (``core/media_marks``); a cut may have left only
            a part of the last one.
        head: the tokens up to the end of the media, with marks for their placeholders.
        ready: tokens whose KV is on the device.
        saved: tokens whose KV is on the device or in a lower tier.
        checked: tokens that are known to be ids of the vocabulary.
        pages: page table; page ``i`` holds positions ``[i * page_size, (i + 1) * page_size)``.
        sent: how many leading entries of the page table the worker has, as they are now.
        shared: how many leading pages belong to the radix cache; the rest are this context's own.
        lock: handle of the locked radix node, None while the context holds nothing.
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
        """Key of its KV in the cache, as long as the tokens."""
        head = self.head
        return key(head + self.tokens[len(head) :] if head else self.tokens, self.segments)

    @property
    def tail(self) -> int:
        """Index of the first token of the last segment: from there on, tokens see all before."""
        return self.segments[-1].start if self.segments else 0

    @property
    def work(self) -> int:
        """Tokens whose KV is still to be computed."""
        return len(self.tokens) - self.saved

    @property
    def active(self) -> bool:
        """Whether the context holds device memory (a lock, pages or both)."""
        return self.lock is not None
