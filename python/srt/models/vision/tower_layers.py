"""Layers that vision towers share: normalised pixels, patch embeddings, projectors and full
attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.layers.linear import ColumnLinear, RowLinear
from sglang.srt.layers.torch_writer import TorchOperations
from sglang.srt.layers.weight import Place, Slot, Slots, Stored
from sglang.srt.media.processor_settings import Norms
from sglang.srt.numeric.host_arrays import Array
from sglang.srt.numeric.torch_later import F, Tensor, torch
from sglang.srt.parallel.groups import Group


def whole(place: Place) -> Place:
    """Towers are small compared with the text model: each rank has all of it."""
    return replace(place, group=Group())


def plain(layers: Iterable[Stored]) -> list[Stored]:
    """The layers, marked as not to be quantised on load: a tower's weights are few, its hidden
    states have outliers, and what it gets wrong stands in every token of an image."""
    out = list(layers)
    for layer in out:
        layer.plain = True
    return out


def pixels(media: MediaSpan, norms: Norms, place: Place) -> Tensor:
    """[N, 3, height, width] in the dtype of hidden states, normalised in float32."""
    norm = norms.video if media.kind == "video" else norms.image
    levels = torch.frombuffer(bytearray(media.pixels), dtype=torch.uint8).view(media.shape)
    mean, std = (torch.tensor(c, device=place.device).view(3, 1, 1) for c in norm[1:])
    x = levels.to(place.device).float() * norm.scale
    return ((x - mean) / std).to(place.states)


class PatchEmbedding(Stored):
    """A convolution whose steps are as long as its kernel: a matrix product over patches.

    ``kernel``: (3, height, width), or (3, frames, height, width); patches [N, inputs] are in its
    order.
    """

    def __init__(self, width: int, kernel: tuple[int, ...], bias: bool, place: Place) -> None:
        self.shape = (width, *kernel)
        self.weight = place.empty(width, prod(kernel))
        self.bias = place.empty(width) if bias else None

    def slots(self, prefix: str) -> Slots:
        out = {f"{prefix}weight": Slot(self.weight, self.shape, adapt=_flat)}
        if self.bias is not None:
            out[f"{prefix}bias"] = Slot(self.bias, self.shape[:1], kind="bias")
        return out


def _flat(kernel: Array) -> Array:
    return kernel.reshape(len(kernel), -1)


class Projector:
    """``second(act(first(x)))``, from the tower's width to the text model's."""

    def __init__(
        self, sizes: tuple[int, int, int], act: str, bias: bool, names: tuple[str, str],
        place: Place,
    ) -> None:  # fmt: skip
        inputs, inner, outputs = sizes
        self.first = ColumnLinear(inputs, {names[0]: inner}, bias, place)
        self.second = RowLinear(inner, names[1], outputs, bias, place)
        self.act = act

    def write(self, w: TorchOperations, x: Tensor) -> Tensor:
        """[N, inputs] -> [N, outputs]."""
        return w.product(w.activate(w.product(x, self.first), self.act), self.second)

    def stored(self) -> list[Stored]:
        return [self.first, self.second]

    def slots(self, prefix: str) -> Slots:
        return self.first.slots(prefix) | self.second.slots(prefix)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each of [N, tokens, heads, head_dim] -> [N, tokens, heads * head_dim]; the tokens of each of
    the N see one another."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
