"""The image encoder of Qwen2.5-VL (Bai et al. 2025, section 2.1.1): a vision transformer over the
patches of a picture of any size, or of pairs of a video's frames. Positions are rotary, by row and
column. Most layers attend within windows, a few within the whole frame. At the end ``merge^2``
neighbours become one hidden state of the text model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sglang.srt.layers.linear import ColumnLinear, Fused, RowLinear
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.torch_writer import TorchOperations
from sglang.srt.layers.weight import Place, Slots, Stored
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.model_spec import read_activation
from sglang.srt.models.vision.tower_layers import PatchEmbedding, Projector, attend
from sglang.srt.numeric.torch_later import Tensor, torch

EPS = 1e-6  # the norms' epsilon, whatever the config says


@dataclass(frozen=True)
class WindowTowerSpec:
    """Sizes of a vision tower whose layers attend within windows.

    Attributes:
        patch: side of a patch, in pixels.
        frames: number of frames in one step of time.
        merge: side of a square of patches that becomes one hidden state of ``outputs`` numbers.
        window: side of a window, in merged patches.
        whole: layers that attend to the whole frame.
    """

    width: int
    inner: int
    layers: int
    heads: int
    patch: int
    frames: int
    merge: int
    window: int
    whole: frozenset[int]
    outputs: int
    activation: str

    @staticmethod
    def of(config: Fields, outputs: int) -> WindowTowerSpec:
        """Read a ``vision_config``. ``outputs``: the text model's width. Raises ValueError."""
        width, heads = config.int("hidden_size", 1280), config.int("num_heads", 16)
        if width % heads or width // heads % 4:
            raise config.error("hidden_size", f"the {heads} heads need multiples of 4 of it.")
        if config.int("out_hidden_size", outputs) != outputs:
            raise config.error("out_hidden_size", f"the text model's is {outputs}.")
        for key in ("in_channels", "in_chans"):
            if config.int(key, 3) != 3:
                raise config.error(key, "it must be 3.")
        layers, patch = config.int("depth", 32), config.int("patch_size", 14)
        merge = config.int("spatial_merge_size", 2)
        whole = config.values.get("fullatt_block_indexes", [7, 15, 23, 31])
        if not isinstance(whole, list) or any(type(n) is not int for n in whole):
            raise config.error("fullatt_block_indexes", "it must list numbers of layers.")
        window = config.int("window_size", 112) // merge // patch
        if window < 1:
            raise config.error("window_size", f"a window must hold {merge * patch} pixels a side.")
        return WindowTowerSpec(
            width=width,
            inner=config.int("intermediate_size", 3420),
            layers=layers,
            heads=heads,
            patch=patch,
            frames=config.int("temporal_patch_size", 2),
            merge=merge,
            window=window,
            whole=frozenset(whole),
            outputs=outputs,
            activation=read_activation(config, "hidden_act", "silu"),
        )


class Windows(NamedTuple):
    """A frame's merged patches, [rows, columns], window by window.

    Attributes:
        order: of the merged patches, windows of one size together.
        groups: (windows, merged patches of each) for each size, in that order.
    """

    order: Tensor
    groups: list[tuple[int, int]]

    @staticmethod
    def of(rows: int, columns: int, side: int) -> Windows:
        """Windows at the lower and right edges are smaller."""
        numbers = torch.arange(rows * columns).view(rows, columns)
        by_size: dict[tuple[int, int], list[Tensor]] = {}
        for top in range(0, rows, side):
            for left in range(0, columns, side):
                window = numbers[top : top + side, left : left + side]
                by_size.setdefault((window.shape[0], window.shape[1]), []).append(window.flatten())
        order = torch.cat([window for group in by_size.values() for window in group])
        return Windows(order, [(len(group), group[0].numel()) for group in by_size.values()])


class WindowAttention:
    """Attention over the frame or within its windows, with rotary positions by row and column."""

    def __init__(self, spec: WindowTowerSpec, place: Place) -> None:
        width, self.heads = spec.width, spec.heads
        parts = dict.fromkeys(("q", "k", "v"), width)
        self.qkv = ColumnLinear(width, parts, True, place, fused=Fused("qkv"))
        self.out = RowLinear(width, "proj", width, True, place)

    def write(
        self, w: TorchOperations, x: Tensor, turn: tuple[Tensor, Tensor],
        groups: list[tuple[int, int]],
    ) -> Tensor:  # fmt: skip
        """x: [steps, patches, width] -> the same. ``turn``: cosines and signed sines
        [patches, 1, head_dim]; ``groups``: how many sets of how many patches see one another."""
        steps, patches, width = x.shape
        qkv = w.product(x.flatten(0, 1), self.qkv).view(steps, patches, 3, self.heads, -1)
        cos, sin = turn
        q, k, v = qkv.unbind(2)
        half = q.shape[-1] // 2
        q, k = (y * cos + y.roll(half, -1) * sin for y in (q, k))
        out, first = [], 0
        for number, size in groups:
            span = slice(first, first + number * size)
            parts = (y[:, span].reshape(steps * number, size, self.heads, -1) for y in (q, k, v))
            out.append(attend(*parts).view(steps, number * size, width))
            first += number * size
        return w.product(torch.cat(out, dim=1).flatten(0, 1), self.out).view(x.shape)

    def stored(self) -> list[Stored]:
        return [self.qkv, self.out]

    def slots(self, prefix: str) -> Slots:
        return self.qkv.slots(prefix) | self.out.slots(prefix)


class WindowBlock:
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, spec: WindowTowerSpec, place: Place) -> None:
        self.attention = WindowAttention(spec, place)
        self.mlp = GatedMLP(spec.width, spec.inner, spec.activation, True, place)
        self.attention_norm = RMSNorm(spec.width, EPS, place)
        self.mlp_norm = RMSNorm(spec.width, EPS, place)

    def write(
        self, w: TorchOperations, x: Tensor, turn: tuple[Tensor, Tensor],
        groups: list[tuple[int, int]],
    ) -> Tensor:  # fmt: skip
        x = x + self.attention.write(w, w.norm(x, self.attention_norm), turn, groups)
        inner = self.mlp.inner(w, w.norm(x, self.mlp_norm).flatten(0, 1))
        return x + w.product(inner, self.mlp.down).view(x.shape)

    def stored(self) -> list[Stored]:
        return [*self.attention.stored(), *self.mlp.stored()]

    def slots(self, prefix: str) -> Slots:
        return (
            self.attention.slots(f"{prefix}attn.")
            | self.mlp.slots(f"{prefix}mlp.")
            | self.attention_norm.slots(f"{prefix}norm1.weight")
            | self.mlp_norm.slots(f"{prefix}norm2.weight")
        )


class WindowTower:
    def __init__(self, spec: WindowTowerSpec, place: Place) -> None:
        self.spec, width = spec, spec.width
        kernel = (3, spec.frames, spec.patch, spec.patch)
        self.patches = PatchEmbedding(width, kernel, False, place)
        self.layers = [WindowBlock(spec, place) for _ in range(spec.layers)]
        self.norm = RMSNorm(width, EPS, place)
        inner = width * spec.merge**2
        names = ("0", "2")
        self.merger = Projector((inner, inner, spec.outputs), "gelu", True, names, place)

    def write(self, w: TorchOperations, pixels: Tensor) -> Tensor:
        """Frames [N, 3, height, width] -> [steps * rows * columns, outputs], rows and columns of
        merged patches."""
        merge, (height, width) = self.spec.merge, pixels.shape[2:]
        unit = self.spec.patch * merge
        rows, columns = height // unit, width // unit
        windows = Windows.of(rows, columns, self.spec.window)
        order = windows.order.to(pixels.device)
        x = w.product(self._cut(pixels, rows, columns), self.patches)
        x = x.view(-1, rows * columns, merge**2, self.spec.width)
        steps = x.shape[0]
        x = x[:, order].flatten(1, 2)
        turn = self._turn(rows, columns, windows.order, x)
        inside = [(number, size * merge**2) for number, size in windows.groups]
        everything = [(1, x.shape[1])]
        for number, layer in enumerate(self.layers):
            x = layer.write(w, x, turn, everything if number in self.spec.whole else inside)
        merged = self.merger.write(w, w.norm(x, self.norm).view(steps * rows * columns, -1))
        out = torch.empty_like(merged).view(steps, rows * columns, -1)
        out[:, order] = merged.view(out.shape)
        return out.flatten(0, 1)

    def _cut(self, pixels: Tensor, rows: int, columns: int) -> Tensor:
        """Frames -> patches [steps * rows * columns * merge^2, inputs], those that are merged next
        to each other. A single frame stands for all of its step."""
        spec, m, p = self.spec, self.spec.merge, self.spec.patch
        if pixels.shape[0] % spec.frames:
            pixels = pixels.repeat_interleave(spec.frames, dim=0)
        x = pixels.view(-1, spec.frames, 3, rows, m, p, columns, m, p)
        return x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 3 * spec.frames * p * p)

    def _turn(self, rows: int, columns: int, order: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [patches, 1, head_dim] in the windows' order: the first half of
        a head's pairs turns by the row, the second by the column."""
        m, pairs = self.spec.merge, self.spec.width // self.spec.heads // 4
        inverse = 10000.0 ** -(torch.arange(pairs, dtype=torch.float32) / pairs)
        shape = (rows, m, columns, m)
        row = torch.arange(rows * m).view(rows, m, 1, 1).expand(shape)
        column = torch.arange(columns * m).view(1, 1, columns, m).expand(shape)
        places = torch.stack([row, column], -1).transpose(1, 2).reshape(-1, m * m, 2)[order]
        angles = (places.reshape(-1, 2, 1).float() * inverse).flatten(1)
        cos, sin = angles.cos(), angles.sin()
        both = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        return both[0].unsqueeze(1).to(x), both[1].unsqueeze(1).to(x)

    def stored(self) -> list[Stored]:
        layers = [part for layer in self.layers for part in layer.stored()]
        return [self.patches, *layers, *self.merger.stored()]

    def slots(self, prefix: str) -> Slots:
        out = self.patches.slots(f"{prefix}patch_embed.proj.")
        for number, layer in enumerate(self.layers):
            out |= layer.slots(f"{prefix}blocks.{number}.")
        out |= self.norm.slots(f"{prefix}merger.ln_q.weight")
        return out | self.merger.slots(f"{prefix}merger.mlp.")
