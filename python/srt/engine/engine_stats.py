"""EngineStats: counters of the engine since it started."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.core.batch import Batch, StepResult


@dataclass(slots=True)
class EngineStats:
    """Counters. At idle, ``received`` = ``finished`` + ``aborted`` + ``failed``; rejected requests
    were never received.

    Attributes:
        computed_tokens: tokens that went through a forward pass.
        cached_tokens: tokens of ``prompt_tokens`` whose KV was cached.
        loaded_tokens: tokens whose KV was copied from host memory.
        encoded_media: images and videos that the vision tower has encoded.
        reread_media: images and videos whose hidden states were kept from an earlier pass.
        compiled_kernels: kernels that passes had to compile. 0 unless the warm-up left one out.
        postponed_rows: rows whose token a later pass sampled, because the budget of the pass for
            grammars was spent.
        plan_misses: rows that the scheduler planned and for which there were too few pages.
    """

    received: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    rejected: int = 0
    passes: int = 0
    failed_passes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    loaded_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    encoded_media: int = 0
    reread_media: int = 0
    compiled_kernels: int = 0
    retractions: int = 0
    postponed_rows: int = 0
    plan_misses: int = 0
    bad_verbs: int = 0
    bad_frames: int = 0
    failed_audits: int = 0

    def computed(self, batch: Batch, result: StepResult) -> None:
        """Count a computed pass."""
        self.passes += 1
        self.computed_tokens += batch.num_tokens
        self.encoded_media += result.encoded
        self.reread_media += result.reread
        self.compiled_kernels += result.compiled

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
