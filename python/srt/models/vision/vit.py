"""The image encoders of CLIP (Radford et al. 2021, section 2.4) and SigLIP (Zhai et al. 2023):
vision transformers (Dosovitskiy et al. 2021) over the patches of a square.

CLIP's has a class embedding in front of the patches and a norm before the first layer; SigLIP's has
neither. The pooling at their ends has no use here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang.srt.layers.linear import ColumnLinear, RowLinear
from sglang.srt.layers.mlp import PlainMLP
from sglang.srt.layers.norm import LayerNorm
from sglang.srt.layers.torch_writer import TorchOperations
from sglang.srt.layers.weight import Place, Slot, Slots, Stored
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import read_activation
from sglang.srt.models.vision.tower_layers import PatchEmbedding, attend
from sglang.srt.numeric.torch_later import Tensor, torch

BATCH = 16  # squares that are encoded at once, for the memory between


@dataclass(frozen=True)
class TowerSpec:
    """``clip``: it has what CLIP's tower has and SigLIP's has not."""

    clip: bool
    width: int
    inner: int
    layers: int
    heads: int
    pixels: int
    patch: int
    eps: float
    activation: str

    @property
    def side(self) -> int:
        """Patches along the side of a square; what is over is cut off."""
        return self.pixels // self.patch

    @staticmethod
    def of(config: Fields) -> TowerSpec:
        """Read a ``vision_config``, with LLaVA's defaults. Raises ValueError."""
        kind = config.text("model_type", "clip_vision_model")
        if kind not in ("clip_vision_model", "siglip_vision_model"):
            raise config.error(
                "model_type", "supported are clip_vision_model, siglip_vision_model."
            )
        clip = kind == "clip_vision_model"
        width, heads = config.int("hidden_size", 1024 if clip else 1152), 16
        heads = config.int("num_attention_heads", heads)
        if width % heads:
            raise config.error("hidden_size", f"it must be a multiple of the {heads} heads.")
        if config.int("num_channels", 3) != 3:
            raise config.error("num_channels", "it must be 3.")
        return TowerSpec(
            clip=clip,
            width=width,
            inner=config.int("intermediate_size", 4096 if clip else 4304),
            layers=config.int("num_hidden_layers", 24 if clip else 26),
            heads=heads,
            pixels=config.int("image_size", 336 if clip else 384),
            patch=config.int("patch_size", 14),
            eps=config.float("layer_norm_eps", 1e-5 if clip else 1e-6),
            activation=read_activation(
                config, "hidden_act", "quick_gelu" if clip else "gelu_pytorch_tanh"
            ),
        )


class EncoderBlock:
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, spec: TowerSpec, place: Place) -> None:
        width = spec.width
        self.heads = spec.heads
        parts = dict.fromkeys(("q_proj", "k_proj", "v_proj"), width)
        self.qkv = ColumnLinear(width, parts, True, place)
        self.out = RowLinear(width, "out_proj", width, True, place)
        names = ("fc1", "fc2")
        self.mlp = PlainMLP(width, spec.inner, spec.activation, True, place, names)
        self.attention_norm = LayerNorm(width, spec.eps, place)
        self.mlp_norm = LayerNorm(width, spec.eps, place)

    def write(self, w: TorchOperations, x: Tensor, squares: int) -> Tensor:
        """[squares * tokens, width] -> the same."""
        qkv = w.product(w.norm(x, self.attention_norm), self.qkv)
        q, k, v = qkv.view(squares, -1, 3, self.heads, self.head_dim).unbind(2)
        x = x + w.product(attend(q, k, v).flatten(0, 1), self.out)
        return x + w.product(self.mlp.inner(w, w.norm(x, self.mlp_norm)), self.mlp.down)

    @property
    def head_dim(self) -> int:
        return self.qkv.inputs // self.heads

    def stored(self) -> list[Stored]:
        return [self.qkv, self.out, *self.mlp.stored()]

    def slots(self, prefix: str) -> Slots:
        return (
            self.qkv.slots(f"{prefix}self_attn.")
            | self.out.slots(f"{prefix}self_attn.")
            | self.mlp.slots(f"{prefix}mlp.")
            | self.attention_norm.slots(f"{prefix}layer_norm1.weight")
            | self.mlp_norm.slots(f"{prefix}layer_norm2.weight")
        )


class ViT:
    """Tower of a multimodal model (``models.vision.vision_language``).

    ``wanted``: after how many layers hidden states are taken, ascending or not. Layers after the
    last of them are not loaded.
    """

    def __init__(self, spec: TowerSpec, wanted: Sequence[int], place: Place) -> None:
        self.spec, self.wanted = spec, tuple(wanted)
        width = spec.width
        tokens = spec.side**2 + spec.clip
        kernel = (3, spec.patch, spec.patch)
        self.patches = PatchEmbedding(width, kernel, not spec.clip, place)
        self.positions = place.empty(tokens, width)
        self.first = place.empty(width) if spec.clip else None
        self.norm = LayerNorm(width, spec.eps, place) if spec.clip else None
        self.layers = [EncoderBlock(spec, place) for _ in range(max(self.wanted))]

    def write(self, w: TorchOperations, pixels: Tensor) -> Tensor:
        """Squares [N, 3, pixels, pixels] -> hidden states [N, tokens, width * len(wanted)]."""
        return torch.cat([self._batch(w, part) for part in pixels.split(BATCH)])

    def _batch(self, w: TorchOperations, pixels: Tensor) -> Tensor:
        squares, side, patch = pixels.shape[0], self.spec.side, self.spec.patch
        cut = pixels[..., : side * patch, : side * patch]
        rows = cut.reshape(squares, 3, side, patch, side, patch).permute(0, 2, 4, 1, 3, 5)
        x = w.product(rows.reshape(squares * side * side, -1), self.patches)
        x = x.view(squares, side * side, -1)
        if self.first is not None:
            x = torch.cat([self.first.to(x.dtype).expand(squares, 1, -1), x], dim=1)
        x = x + self.positions.to(x.dtype)
        if self.norm is not None:
            x = w.norm(x, self.norm)
        shape = x.shape
        x = x.flatten(0, 1)
        taken = {0: x}
        for number, layer in enumerate(self.layers, 1):
            x = layer.write(w, x, squares)
            if number in self.wanted:
                taken[number] = x
        return torch.cat([taken[number].view(shape) for number in self.wanted], dim=-1)

    def stored(self) -> list[Stored]:
        return [self.patches, *(part for layer in self.layers for part in layer.stored())]

    def slots(self, prefix: str) -> Slots:
        tokens, width = self.positions.shape
        out = self.patches.slots(f"{prefix}embeddings.patch_embedding.")
        table = Slot(self.positions, (tokens, width))
        out[f"{prefix}embeddings.position_embedding.weight"] = table
        if self.first is not None:
            out[f"{prefix}embeddings.class_embedding"] = Slot(self.first, (width,), kind="bias")
        if self.norm is not None:
            out |= self.norm.slots(f"{prefix}pre_layrnorm.weight")  # the checkpoints' spelling
        for number, layer in enumerate(self.layers):
            out |= layer.slots(f"{prefix}encoder.layers.{number}.")
        return out
