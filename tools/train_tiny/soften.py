"""Soften attention in a checkpoint: `python -m tools.train_tiny.soften --run FOLDER --factor 0.3`.

Muon moves every direction of a matrix by the same amount. With little weight decay the query and
key matrices grow until each head looks at one token only, and then no gradient tells it where else
to look. Scaling the queries down brings the gradient back; where heads were saturated, the loss
does not even change. The two heads of the hand-written circuit are sharp on purpose and stay so.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from tools.train_tiny.train import load_model

KEPT = ((0, 0), (1, 0))
"""Layer and head of the circuit."""


@torch.no_grad()
def soften(checkpoint: Path, factor: float) -> None:
    """Scale the queries of all heads but the circuit's."""
    model, state = load_model(checkpoint)
    size = model.shape.head_dim
    for number, layer in enumerate(model.model.layers):
        queries = layer.self_attn.q_proj.weight.view(-1, size, model.shape.hidden_size)
        for head in range(model.shape.num_attention_heads):
            if (number, head) not in KEPT:
                queries[head] *= factor
    state["model"] = model.state_dict()
    torch.save(state, checkpoint.with_suffix(".part"))
    os.replace(checkpoint.with_suffix(".part"), checkpoint)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--factor", type=float, default=0.3)
    chosen = parser.parse_args()
    soften(chosen.run / "checkpoint.pt", chosen.factor)
