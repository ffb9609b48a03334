"""Variants of a family that do not generate: embeddings without a head, and label classifiers.

Both are made from a family that generates. A classifier reads its scores off the last token, as
HF's ``...ForSequenceClassification`` do. A reward model is a classifier with a single label.
"""

from __future__ import annotations

from dataclasses import replace

from sglang.srt.models.causal import CausalLM
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.numeric.host_arrays import Weight

MAX_LABELS = 1 << 16


def headless(family: type[CausalLM]) -> type[CausalLM]:
    """The family as HF's ``...Model``, which has hidden states in place of logits."""

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

        def adjust(self, scores: Weight) -> Weight:
            return scores

    return Classifier


def _labels(config: Fields) -> tuple[str, ...]:
    """Labels by number: ``id2label``, or LABEL_0 and so on; two without a number in the config."""
    names = config.fields("id2label").values
    count = config.int("num_labels", len(names) or 2)
    if count > MAX_LABELS:
        raise config.error("num_labels", f"at most {MAX_LABELS} are supported.")
    return tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(count))
