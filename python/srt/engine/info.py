"""EngineInfo: facts about an engine that its clients need."""

from __future__ import annotations

import msgspec
from sglang.srt.config import JSON_WHITESPACE
from sglang.srt.core.media_marks import Medias
from sglang.srt.core.messages import AdapterInfo
from sglang.srt.core.places import reach
from sglang.srt.core.segments import Segments

FIRST_ADAPTER = 1  # number of the first adapter; 0 is the model itself


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts fixed at start.

    Attributes:
        capacity: KV cache size in tokens; no request may need more at once.
        host_capacity: tokens of KV that host memory may hold for the device.
        disk_capacity: tokens of KV that the disk may hold.
        context_length: longest sequence, prompt and generation together.
        eos: ids that end a generation.
        weight_bytes: size of the loaded weights, all ranks together.
        hidden_size: length of an embedding.
        purpose: "generate"; "embed" or "classify" for a model without a language model head.
        labels: names of a classifier's classes; its scores are returned in place of an embedding.
        kernels: on a CPU, the instruction set of the native kernels, or "torch".
        attention: name of the attention implementation, "" with native kernels.
        graph_rows: rows of the largest CUDA graph of decode passes; 0: no graphs.
        fallbacks: kernels and graphs that failed at the start, each with its replacement.
        quantization: as in ``ModelConfig``.
        vision: whether the model reads images and videos.
        windowed: whether some layers have a sliding window.
        sections: whether positions of tokens have three parts (``Row.places``, M-RoPE).
        lora: whether adapters may be loaded. adapters: adapters loaded at the start.
        json_whitespace_pattern: pattern of the white space allowed between two tokens of JSON,
            unless a request has its own.
        draft_model: path of the draft model; "": none.
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
    host_capacity: int = 0
    disk_capacity: int = 0
    parameters: int = 0
    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    hidden_size: int = 0
    purpose: str = "generate"
    labels: tuple[str, ...] = ()
    kernels: str = "torch"
    attention: str = ""
    graph_rows: int = 0
    fallbacks: tuple[str, ...] = ()
    quantization: str = "none"
    vision: bool = False
    windowed: bool = False
    sections: bool = False
    lora: bool = False
    max_loras_per_batch: int = 0
    max_loaded_loras: int = 0
    adapters: tuple[AdapterInfo, ...] = ()
    draft_model: str = ""
    json_whitespace_pattern: str = JSON_WHITESPACE

    def verify_media(self, media: Medias, segments: Segments) -> None:
        """Raise ValueError if the model cannot read the prompt's images and videos."""
        if media and not self.vision:
            raise ValueError(
                f"the prompt has {len(media)} images or videos and {self.model_path} "
                f"({self.architecture}) has no vision tower; serve a model that has one"
            )
        if media and segments and self.sections:
            raise ValueError(
                f"texts side by side cannot have images in {self.architecture}, whose positions "
                "have three parts; let them follow each other"
            )

    def room(self, length: int, media: Medias) -> int:
        """Return the number of tokens that may follow a prompt. A video's frames may span more
        positions than it has tokens."""
        end = reach(media, length) if self.sections else length
        return min(self.context_length - end, self.capacity - length)

    def verify_purpose(self) -> None:
        """Raise ValueError if the model has no language model head."""
        if self.purpose == "generate":
            return
        use = "/classify" if self.labels else "/v1/embeddings"
        raise ValueError(
            f"{self.model_path} ({self.architecture}) has no language model head, so it cannot "
            f"generate or score text; use {use}, or serve a ...ForCausalLM model."
        )

    def verify_speculation(self, requested: str) -> None:
        """Raise ValueError if the engine lacks the drafter that a request chooses."""
        if requested == "draft" and not self.draft_model:
            raise ValueError(
                "speculation is 'draft' and this server has no draft model; start it with "
                "--speculative-draft-model-path, or use 'ngram'."
            )
