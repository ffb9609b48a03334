"""DeepSeek-V2 (2024): latents in the cache in place of keys and values (section 2.1), and after the
first layers experts in groups, beside some that all tokens go through (section 2.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sglang.srt.attention.attention_protocol import KVShape
from sglang.srt.layers.experts import ExpertNames, Experts, ExpertsShape
from sglang.srt.layers.latent import LatentAttention
from sglang.srt.layers.latent_expansion import LatentShape
from sglang.srt.layers.mlp import FeedForward, GatedMLP
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.prenorm import PreNorm
from sglang.srt.layers.rotary import Rotary
from sglang.srt.layers.routing import Routing
from sglang.srt.layers.weight import Place
from sglang.srt.models.causal import CausalLM
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.mixture import MixtureSpec, read_routing
from sglang.srt.models.model_spec import decoder_spec, extended

# The norms of latents have an eps of their own, which no config names.
LATENT_EPS = 1e-6
NAMES = ExpertNames(shared="shared_experts")


@dataclass(frozen=True, kw_only=True)
class DeepseekSpec(MixtureSpec):
    """``head_dim`` is of what turns. ``latent``: attention of every layer."""

    latent: LatentShape

    @property
    def kv(self) -> KVShape:
        shape = self.latent
        return KVShape(1, shape.rank + shape.turned, shape.rank, shared=True)


class DeepseekBlock(PreNorm):
    def __init__(
        self, spec: DeepseekSpec, layer: int, index: int, place: Place, rotary: Rotary
    ) -> None:
        self.attention = LatentAttention(spec.latent, index, place, rotary)
        self.attention_norm = RMSNorm(spec.hidden_size, spec.eps, place)
        self.mlp_norm = RMSNorm(spec.hidden_size, spec.eps, place)
        self.mlp: FeedForward
        if spec.sparse[layer]:
            self.mlp = Experts(spec.experts, place)
        else:
            self.mlp = GatedMLP(
                spec.hidden_size, spec.intermediate_size, spec.activation, spec.mlp_bias, place
            )


class DeepseekV2ForCausalLM(CausalLM):
    spec: DeepseekSpec

    def block(self, layer: int, index: int) -> DeepseekBlock:
        return DeepseekBlock(self.spec, layer, index, self.place, self.rotary)

    @staticmethod
    def read(config: Fields, architecture: str) -> DeepseekSpec:
        if config.flag("norm_topk_prob"):
            raise config.error(
                "norm_topk_prob", "weights of DeepSeek-V2 are scaled and not normed; set it false."
            )
        method = config.text("topk_method", "greedy")
        if method not in ("greedy", "group_limited_greedy"):
            raise config.error("topk_method", "it must be greedy or group_limited_greedy.")
        routing = read_routing(config, "n_routed_experts", 6, renormalise=False)
        if method == "group_limited_greedy":
            routing = in_groups(config, routing)
        config = config.assuming(n_shared_experts=2)
        return deepseek_spec(config, architecture, routing, query_rank=1536)


def in_groups(config: Fields, routing: Routing) -> Routing:
    """The routing with the groups of ``n_group`` and ``topk_group``."""
    groups, kept = config.int("n_group"), config.int("topk_group")
    each = routing.experts // groups
    if routing.experts % groups:
        raise config.error("n_group", f"it must divide the {routing.experts} experts.")
    if kept > groups or kept * each < routing.top_k:
        raise config.error(
            "topk_group",
            f"{routing.top_k} experts must fit into so many of {groups} groups of {each}.",
        )
    return replace(routing, groups=groups, kept=kept)


def deepseek_spec(
    config: Fields, architecture: str, routing: Routing, query_rank: int
) -> DeepseekSpec:
    """Spec shared by V2 and V3. ``query_rank``: the default; null in the config is none."""
    turned, still = config.int("qk_rope_head_dim", 64), config.int("qk_nope_head_dim", 128)
    spec = decoder_spec(config, architecture, head_dim=turned, mlp_bias=config.flag("mlp_bias"))
    spec = replace(spec, head_dim=turned)
    if turned % 2:
        raise config.error("qk_rope_head_dim", "it must be even, since pairs of dimensions turn.")
    if config.int("moe_layer_freq", 1) != 1:
        raise config.error("moe_layer_freq", "only 1 is supported.")
    rank = config.int("kv_lora_rank", 512)
    if rank % 2:
        raise config.error("kv_lora_rank", "it must be even.")
    missing = 0 if "q_lora_rank" in config.values else query_rank
    rope, scale = spec.rope, (still + turned) ** -0.5
    if rope.type != "default" and rope.mscale_all_dim and rope.factor > 1:
        # YaRN (section 3.4) scales queries and keys by the rotation, which here turns a part of
        # them alone.
        scale *= (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0) ** 2
    latent = LatentShape(
        width=spec.hidden_size,
        num_heads=spec.num_heads,
        rank=rank,
        query_rank=config.int("q_lora_rank", missing),
        still=still,
        turned=turned,
        value=config.int("v_head_dim", 128),
        scale=scale,
        eps=LATENT_EPS,
        bias=config.flag("attention_bias"),
        pairs=config.flag("rope_interleave", True),
    )
    inner = config.int("moe_intermediate_size")
    experts = ExpertsShape(
        width=spec.hidden_size,
        inner=inner,
        routing=replace(routing, scale=config.float("routed_scaling_factor", 1.0)),
        act=spec.activation,
        choice_bias=routing.scores == "sigmoid",
        shared=inner * config.int("n_shared_experts", 0, low=0),
        names=NAMES,
    )
    dense = config.int("first_k_dense_replace", 0, low=0)
    sparse = tuple(n >= dense for n in range(spec.num_layers))
    return extended(spec, DeepseekSpec, latent=latent, experts=experts, sparse=sparse)
