"""Processor: the preparation of images and videos for a model's vision tower."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from PIL import Image
from sglang.srt.core.media_marks import MediaSpan


class Placeholder(NamedTuple):
    """The token that stands once for each image (or video) in a prompt's text, and as often as
    ``Prepared.count`` says in what the model reads. ``id`` is config.json's, -1 where the model
    takes none."""

    text: str
    id: int


class Prepared(msgspec.Struct, frozen=True):
    """An image or a video as the model reads it; the fields are ``MediaSpan``'s."""

    kind: str
    count: int
    shape: tuple[int, ...]
    pixels: bytes
    grid: tuple[int, int, int] = (1, 1, 1)
    size: tuple[int, int] = (0, 0)
    tick: float = 1.0

    @staticmethod
    def of(
        kind: str,
        pixels: np.ndarray[Any, np.dtype[np.uint8]],
        count: int,
        grid: tuple[int, int, int],
        size: tuple[int, int],
        tick: float = 1.0,
    ) -> Prepared:
        return Prepared(kind, count, pixels.shape, pixels.tobytes(), grid, size, tick)

    @property
    def key(self) -> bytes:
        """Digest of everything that its hidden states and positions depend on, 16 bytes."""
        facts = (self.kind, self.count, self.shape, self.grid, self.size, self.tick)
        state = blake2b(repr(facts).encode(), digest_size=16)
        state.update(self.pixels)
        return state.digest()

    def at(self, start: int, key: bytes = b"") -> MediaSpan:
        """This as part of a context, its placeholders beginning at token ``start``. ``key``: its
        own ``key``, where that has been computed already."""
        return MediaSpan(
            start=start, count=self.count, key=key or self.key, kind=self.kind, shape=self.shape,
            pixels=self.pixels, grid=self.grid, size=self.size, tick=self.tick,
        )  # fmt: skip


class Processor:
    """One for each family of models. Its methods may be called from several threads.

    Attributes:
        image_token, video_token: what stands for them in a prompt; ``video_token.id`` is -1 where
            the model takes no videos.
        max_pixels: of a picture, or a frame, before it is resized.
        max_frames: that are taken of a video.
    """

    max_pixels: ClassVar[int] = 1 << 26
    max_frames: ClassVar[int] = 256
    image_token: Placeholder
    video_token: Placeholder

    def image(self, picture: Image.Image, alone: bool = True) -> Prepared:
        """Prepare an RGB picture (``media.image_file.picture``).

        ``alone``: it is the prompt's only picture; some models read several in less detail. Raises
        ValueError where the model cannot read it.
        """
        raise NotImplementedError

    def video(self, frames: Iterable[Image.Image], fps: float = 1.0) -> Prepared:
        """Prepare RGB frames (``media.video_file.read``), ``fps`` a second, at most ``max_frames``.

        Raises ValueError where the model cannot read them.
        """
        raise ValueError(
            "this model reads images, not videos; send frames of the video as several images."
        )

    def counted(self, frames: Iterable[Image.Image]) -> Iterator[Image.Image]:
        """The frames. Raises ValueError where there are none, or more than are read."""
        number = 0
        for number, frame in enumerate(frames, 1):
            if number > self.max_frames:
                raise ValueError(
                    f"the video has more than {self.max_frames} frames; choose a lower num_frames."
                )
            yield frame
        if not number:
            raise ValueError("the video has no frames; send one that has.")
