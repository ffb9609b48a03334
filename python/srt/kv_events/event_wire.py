"""The messages of KV events, as vLLM and SGLang define them.

A message has three parts: topic, sequence number (8 bytes, big-endian), payload. The payload is a
``EventBatch`` in MessagePack, an array of its fields; so is each event, after its name. Trailing
fields that have their defaults are left out.
"""

from __future__ import annotations

import msgspec

MEDIUM = "GPU"  # the device's memory, whatever the device is
END = (-1).to_bytes(8, "big", signed=True)  # sequence number of the end of a replay


class CacheEvent(
    msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True, frozen=True
):
    """A change of the prefix cache."""


class BlockStored(CacheEvent, frozen=True):
    """A chain of blocks was stored.

    Attributes:
        block_hashes: of each block, in order.
        parent_block_hash: of the block before the first; None: it begins a prompt.
        token_ids: of all blocks, ``block_size`` each.
        lora_id: number of the adapter that computed the KV; None: the model itself.
        medium: where the KV is.
        lora_name: the adapter's name.
        extra_keys: for each block, what its hash depends on besides tokens.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None


class BlockRemoved(CacheEvent, frozen=True):
    """Blocks were removed, each by its hash."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(CacheEvent, frozen=True):
    """Nothing is stored any more."""


Events = list[BlockStored | BlockRemoved | AllBlocksCleared]


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, frozen=True):
    """The events of one pass; ``ts``: seconds since the epoch."""

    ts: float
    events: Events
    data_parallel_rank: int | None = None
