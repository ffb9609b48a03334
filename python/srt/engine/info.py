"""EngineInfo: what a client must know of the engine it talks to."""

from __future__ import annotations

import msgspec


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts fixed at start.

    Attributes:
        capacity: KV cache size in tokens; no request may need more at once.
        context_length: longest sequence, prompt and generation together.
        eos: ids that end a generation.
        hidden_size: numbers of an embedding.
    """

    model_path: str
    architecture: str
    dtype: str
    device: str
    vocab_size: int
    context_length: int
    capacity: int
    page_size: int
    max_running_requests: int
    max_queued_requests: int
    eos: tuple[int, ...]
    parameters: int = 0
    kv_bytes_per_token: int = 0
    hidden_size: int = 0
