"""Reference: ``transformers`` in float32, fed an engine's tokens. ``spec``: ``model_path``.

A request here is a prompt and the generated ids; the answer has, for each, the worst regret: by how
much the likeliest token's logit exceeds that of the generated one, in standard deviations of the
logits over the vocabulary. 0 is a greedy choice; a near tie is a small number.
"""

from __future__ import annotations

from typing import Any

from benchmark.peers.sides.wire import serve


class Reference:
    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(
            spec["model_path"], dtype=torch.float32
        ).eval()
        return {}

    def run(self, requests: list[Any]) -> dict[str, Any]:
        return {"regrets": [self.regret(prompt, drawn) for prompt, drawn in requests]}

    def regret(self, prompt: list[int], drawn: list[int]) -> float:
        torch = self.torch
        ids = torch.tensor([prompt + drawn[:-1]])
        with torch.inference_mode():
            logits = self.model(ids, logits_to_keep=len(drawn), use_cache=False).logits[0]
        chosen = logits.gather(1, torch.tensor(drawn)[:, None])[:, 0]
        return float(((logits.amax(1) - chosen) / logits.std(1)).max())


if __name__ == "__main__":
    serve(Reference())
