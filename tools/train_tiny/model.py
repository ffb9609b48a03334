"""A Llama decoder written as the papers describe it, small enough to train on two CPU cores.

Parameter names equal the Hugging Face ones, so exporting is a plain copy of the state.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Cache = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the defaults are those of the shipped model."""

    vocab_size: int = 3072
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    intermediate_size: int = 512
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def to_dict(self) -> dict[str, int | float]:
        """Plain dict, as saved in checkpoints."""
        return asdict(self)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a learned gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotary_tables(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, laid out for rotate-half."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), shape.rope_theta**-half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding to x of shape (batch, heads, time, head_dim)."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, time, _ = x.shape
        heads, kv_heads = self.shape.num_attention_heads, self.shape.num_key_value_heads
        q = self.q_proj(x).view(batch, time, heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(batch, time, kv_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(batch, time, kv_heads, -1).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        groups = heads // kv_heads
        wide_k, wide_v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(q, wide_k, wide_v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).reshape(batch, time, -1)), (k, v)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One pre-norm decoder block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = FeedForward(shape)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, present = self.self_attn(self.input_layernorm(x), cos, sin, mask, past)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), present


class Decoder(nn.Module):
    """Embedding, layers and final norm: the `model.` prefix of the Hugging Face names."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class TinyLlama(nn.Module):
    """The language model; the output projection is the embedding matrix."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        cos, sin = rotary_tables(shape, shape.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Large embeddings and a small last gain; blocks start as the identity.

        The embedding is also the output projection, which would make it small. A small embedding
        drowns in what the blocks add, and tokens that cannot be distinguished cannot be copied; so
        the last gain is made small instead.
        """
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.5 if "embed" in name else weight.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(weight)
        nn.init.constant_(self.model.norm.weight, 0.04)

    def hidden(
        self, tokens: Tensor, mask: Tensor, cache: Cache | None = None
    ) -> tuple[Tensor, Cache]:
        """States after the final norm; `mask` is additive or boolean (batch, 1, time, keys)."""
        start = 0 if cache is None else cache[0][0].shape[2]
        end = start + tokens.shape[1]
        cos, sin = self.cos[start:end], self.sin[start:end]
        x = self.model.embed_tokens(tokens)
        presents: Cache = []
        for index, layer in enumerate(self.model.layers):
            x, present = layer(x, cos, sin, mask, None if cache is None else cache[index])
            presents.append(present)
        return self.model.norm(x), presents

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token."""
        return hidden @ self.model.embed_tokens.weight.T

    def loss(self, tokens: Tensor, documents: Tensor, weights: Tensor) -> Tensor:
        """Weighted cross-entropy; logits are computed only where the weight is not zero.

        `documents` numbers the packed samples of each row: no sample sees another one.
        `weights[b, t]` is the weight of predicting `tokens[b, t + 1]` from position `t`; where it
        is zero, neither the last feed-forward nor the logits are computed.
        """
        time = tokens.shape[1]
        causal = torch.ones(time, time, dtype=torch.bool).tril()
        mask = (documents[:, :, None] == documents[:, None, :]) & causal
        bias = torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))[:, None]
        cos, sin = self.cos[:time], self.sin[:time]
        x = self.model.embed_tokens(tokens)
        *layers, last = (cast(Layer, layer) for layer in self.model.layers)
        for layer in layers:
            x, _ = layer(x, cos, sin, bias)
        mixed, _ = last.self_attn(last.input_layernorm(x), cos, sin, bias)
        rows, columns = torch.nonzero(weights, as_tuple=True)
        x = (x + mixed)[rows, columns]
        states = self.model.norm(x + last.mlp(last.post_attention_layernorm(x)))
        targets = tokens[rows, columns + 1]
        losses = F.cross_entropy(self.logits(states), targets, reduction="none")
        picked = weights[rows, columns]
        return (losses * picked).sum() / picked.sum()


@torch.inference_mode()
def complete(
    model: TinyLlama, prompts: list[list[int]], limit: int, stops: frozenset[int]
) -> list[list[int]]:
    """Greedy continuations of a batch of prompts, left-padded, with a key-value cache."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    filled = torch.tensor([[False] * (longest - len(p)) + [True] * len(p) for p in prompts])
    mask = filled[:, None, None, :] & torch.ones(longest, longest, dtype=torch.bool).tril()
    mask = mask | torch.eye(longest, dtype=torch.bool)
    states, cache = model.hidden(tokens, mask)
    outputs: list[list[int]] = [[] for _ in prompts]
    alive = [True] * len(prompts)
    for _ in range(limit):
        chosen = model.logits(states[:, -1]).argmax(-1)
        for index, token in enumerate(chosen.tolist()):
            if alive[index] and token not in stops:
                outputs[index].append(token)
            else:
                alive[index] = False
        if not any(alive) or cache[0][0].shape[2] + 1 >= model.shape.max_position_embeddings:
            break
        filled = torch.cat((filled, torch.ones(len(prompts), 1, dtype=torch.bool)), dim=1)
        states, cache = model.hidden(chosen[:, None], filled[:, None, None, :], cache)
    return outputs
