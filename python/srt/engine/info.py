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
        kernels: what computes on a CPU: the instruction set of native kernels, or "torch".
        quantization: as ``ModelConfig``'s.
        draft_model: guesses tokens ahead of requests that want it; "" where there is none.
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
    kernels: str = "torch"
    quantization: str = "none"
    draft_model: str = ""

    def verify_speculation(self, asked: str) -> None:
        """Raise ValueError where nobody can guess as a request wants."""
        if asked == "draft" and not self.draft_model:
            raise ValueError(
                "speculation is 'draft' and this server has no draft model; start it with "
                "--speculative-draft-model-path, or use 'ngram'."
            )
