"""Mixture of experts: the base of such families. A Llama with experts in all or some of its
feed-forward layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sglang.srt.layers.experts import Experts, ExpertsShape
from sglang.srt.layers.routing import Routing
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.llama import LlamaBlock, LlamaForCausalLM
from sglang.srt.models.model_spec import ModelSpec

MAX_EXPERTS, MAX_EXPERTS_IN_ALL = 1024, 1 << 15  # experts of a layer; of a model


@dataclass(frozen=True, kw_only=True)
class MixtureSpec(ModelSpec):
    """Sizes of a model with experts in some layers.

    Attributes:
        experts: sizes of the experts of each sparse layer.
        sparse: whether each layer has experts; the others are ``intermediate_size`` wide.
    """

    experts: ExpertsShape
    sparse: tuple[bool, ...]


class MixtureForCausalLM(LlamaForCausalLM):
    spec: MixtureSpec
    BLOCK: ClassVar[type[LlamaBlock]] = LlamaBlock

    def block(self, layer: int, index: int) -> LlamaBlock:
        mlp = Experts(self.spec.experts, self.place) if self.spec.sparse[layer] else None
        return self.BLOCK(self.spec, layer, index, self.place, self.rotary, mlp)


def read_routing(config: Fields, count: str, top_k: int, renormalise: bool) -> Routing:
    """Softmax routing. ``count``: the key of the number of experts; ``top_k``: missing."""
    if not config.has(count):  # configs of transformers 5 may use either name
        count = "num_experts" if count == "num_local_experts" else "num_local_experts"
    experts = config.int(count)
    if experts > MAX_EXPERTS:
        raise config.error(count, f"at most {MAX_EXPERTS} experts are supported.")
    layers = config.int("num_hidden_layers")
    if experts * layers > MAX_EXPERTS_IN_ALL:
        raise config.error(count, f"at most {MAX_EXPERTS_IN_ALL} of all {layers} layers.")
    chosen = config.int("num_experts_per_tok", top_k)
    if chosen > experts:
        raise config.error("num_experts_per_tok", f"there are {experts} experts.")
    return Routing(experts, chosen, renormalise=renormalise)


def sparse_layers(config: Fields) -> tuple[bool, ...]:
    """Whether each layer has experts: ``mlp_only_layers`` and ``decoder_sparse_step``."""
    layers = config.int("num_hidden_layers")
    dense = config.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(n) is not int for n in dense):
        raise config.error("mlp_only_layers", "it must be a list of layers.")
    step = config.int("decoder_sparse_step", 1)
    return tuple(n not in dense and (n + 1) % step == 0 for n in range(layers))
