"""Pixels: resizing, cropping and padding, with Pillow's filters on levels 0 to 255."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

Levels = np.ndarray[Any, np.dtype[np.uint8]]
MAX_RESIZED = 1 << 24  # pixels of one picture after resizing


def resized(picture: Image.Image, height: int, width: int, filter: int) -> Image.Image:
    """Return a picture resized. Raises ValueError where the result is larger than any model needs:
    a picture one pixel high that is made hundreds high would also be hundreds of times wider."""
    if height * width > MAX_RESIZED:
        raise ValueError(
            f"the image has {picture.width} x {picture.height} pixels; resized for the model it "
            f"would have {width} x {height}, above the limit of {MAX_RESIZED} pixels. Crop it."
        )
    return picture.resize((width, height), Image.Resampling(filter))


def shortest(picture: Image.Image, side: int, filter: int) -> Image.Image:
    """The picture resized so that its shortest side has ``side`` pixels."""
    width, height = picture.size
    if width <= height:
        return resized(picture, int(side * height / width), side, filter)
    return resized(picture, side, int(side * width / height), filter)


def levels(picture: Image.Image) -> Levels:
    """[3, height, width]."""
    values: Levels = np.asarray(picture, dtype=np.uint8).transpose(2, 0, 1)
    return values


def centre(values: Levels, height: int, width: int) -> Levels:
    """The middle [3, height, width] of [3, ...], black where there is nothing."""
    out = np.zeros((3, height, width), dtype=np.uint8)
    tall, wide = values.shape[1:]
    # The spare line of an odd difference is cut below and right, added above and left.
    top, left = (tall - height) // 2, (wide - width) // 2
    rows = slice(max(top, 0), max(top, 0) + min(height, tall))
    columns = slice(max(left, 0), max(left, 0) + min(width, wide))
    down, across = max(-top, 0), max(-left, 0)
    part = values[:, rows, columns]
    out[:, down : down + part.shape[1], across : across + part.shape[2]] = part
    return out


def centred(picture: Image.Image, height: int, width: int) -> Levels:
    """[3, height, width] with the whole picture in the middle, black around it; of an odd
    difference the spare line is below or right."""
    out = np.zeros((3, height, width), dtype=np.uint8)
    top, left = (height - picture.height) // 2, (width - picture.width) // 2
    out[:, top : top + picture.height, left : left + picture.width] = levels(picture)
    return out


def squared(picture: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    """The picture in the middle of a square of ``colour``."""
    side = max(picture.size)
    if picture.width == picture.height:
        return picture
    if side * side > MAX_RESIZED * 4:
        raise ValueError(
            f"the image has {picture.width} x {picture.height} pixels; as a square it would have "
            f"{side} x {side}, above the limit of {MAX_RESIZED * 4} pixels. Crop it."
        )
    out = Image.new("RGB", (side, side), colour)
    out.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return out
