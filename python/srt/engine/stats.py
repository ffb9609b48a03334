"""Stats: what the engine has done since it started, in counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sglang.srt.core.batch import Batch, StepResult


@dataclass(slots=True)
class Stats:
    """Counters. ``computed_tokens`` went through a forward pass; ``cached_tokens`` of
    ``prompt_tokens`` did not have to. The vision tower has read ``encoded_media`` images and
    videos; the hidden states of ``reread_media`` were there when a pass wanted them. ``started =
    finished + aborted + rejected + failed`` at idle holds for ``received`` plus ``rejected``
    requests. ``postponed_rows``: rows whose token a later pass sampled, since the grammars of the
    pass had spent its budget."""

    received: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    rejected: int = 0
    passes: int = 0
    failed_passes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    encoded_media: int = 0
    reread_media: int = 0
    retractions: int = 0
    postponed_rows: int = 0
    plan_misses: int = 0
    bad_verbs: int = 0
    bad_frames: int = 0
    failed_audits: int = 0

    def computed(self, batch: Batch, result: StepResult) -> None:
        """A pass is done."""
        self.passes += 1
        self.computed_tokens += batch.num_tokens
        self.encoded_media += result.encoded
        self.reread_media += result.reread

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
