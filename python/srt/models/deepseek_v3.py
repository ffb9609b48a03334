"""DeepSeek-V3 (2024): V2 whose experts are scored by sigmoids, a bias on their choice keeping them
evenly busy (section 2.1.2). Its layers that predict further tokens (section 2.2) are not loaded."""

from __future__ import annotations

import re
from dataclasses import replace

from sglang.srt.models.config_fields import Fields
from sglang.srt.models.deepseek_v2 import (
    DeepseekSpec,
    DeepseekV2ForCausalLM,
    deepseek_spec,
    in_groups,
)
from sglang.srt.models.mixture import read_routing


class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
    @staticmethod
    def read(config: Fields, architecture: str) -> DeepseekSpec:
        for key, known in (("topk_method", "noaux_tc"), ("scoring_func", "sigmoid")):
            if config.text(key, known) != known:
                raise config.error(key, f"it must be {known}.")
        config = config.assuming(
            routed_scaling_factor=2.5, n_shared_experts=1, first_k_dense_replace=3, n_group=8,
            topk_group=4,
        )  # fmt: skip
        renormalise = config.flag("norm_topk_prob", True)
        routing = read_routing(config, "n_routed_experts", 8, renormalise)
        # A group is as good as its two best experts together.
        routing = replace(in_groups(config, routing), scores="sigmoid", group_best=2)
        return deepseek_spec(config, architecture, routing, query_rank=1536)

    def ignores(self, name: str) -> bool:
        layer = re.match(rf"{re.escape(self.LAYERS)}(\d+)\.", name)
        further = layer is not None and int(layer[1]) >= self.spec.num_layers
        return further or super().ignores(name)
