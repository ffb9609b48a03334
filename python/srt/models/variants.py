"""Models that write nothing: without a head, for embeddings, and with one that scores labels.

Both are made of a family that writes. A classifier (a reward model is one with a single label)
reads its scores off the last token, as HF's ``...ForSequenceClassification`` do.
"""

from __future__ import annotations

from dataclasses import replace

from sglang.srt.models.causal import CausalLM
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import ModelSpec
from torch import Tensor

MAX_LABELS = 1 << 16


def headless(family: type[CausalLM]) -> type[CausalLM]:
    """The family as HF's ``...Model``: what it has in place of logits is hidden states."""

    class Headless(family):  # type: ignore[valid-type, misc]
        @staticmethod
        def read(config: Fields, architecture: str) -> ModelSpec:
            spec = family.read(config, architecture)
            return replace(spec, purpose="embed", tied=True)  # no tensor of a head is looked for

    return Headless


def classifier(family: type[CausalLM]) -> type[CausalLM]:
    """The family with a score for each label in place of each token."""

    class Classifier(family):  # type: ignore[valid-type, misc]
        HEAD = "score.weight"

        @staticmethod
        def read(config: Fields, architecture: str) -> ModelSpec:
            spec = family.read(config, architecture)
            return replace(spec, purpose="classify", tied=False, labels=_labels(config))

        def adjust(self, scores: Tensor) -> Tensor:
            return scores

    return Classifier


def _labels(config: Fields) -> tuple[str, ...]:
    """By number: ``id2label``, or LABEL_0 and so on. Two where the config does not say."""
    names = config.fields("id2label").values
    count = config.int("num_labels", len(names) or 2)
    if count > MAX_LABELS:
        raise config.error("num_labels", f"at most {MAX_LABELS} are supported.")
    return tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(count))
