"""Pictures from untrusted bytes: bounded before anything is decoded."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
ORIENTATION = 0x0112  # the EXIF tag
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def picture(data: bytes, max_pixels: int) -> Image.Image:
    """The RGB picture in a file's bytes as a viewer shows it: turned as its EXIF data says, what is
    transparent over white, 16 bits a channel cut to 8.

    Raises ValueError for anything else than one picture of at most ``max_pixels`` in a format of
    ``FORMATS``. The size is read from the header: a file that unfolds to more is not decoded.
    """
    image = _opened(data, max_pixels)
    try:
        image.load()
        return _rgb(_turned(image))
    except Exception as error:  # decoders raise any exception on a broken file
        raise ValueError(
            f"the image ({image.format}, {len(data)} bytes) cannot be decoded: {error}; send it "
            f"whole."
        ) from error


def _opened(data: bytes, max_pixels: int) -> Image.Image:
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
        # Phones write photographs as MPO: a JPEG file with more pictures behind the one it shows.
        animated = image.format != "MPO" and getattr(image, "is_animated", False)
    except Image.DecompressionBombError as error:
        raise ValueError(
            f"the image is too large to be read ({error}); send a smaller one."
        ) from None
    except Exception as error:
        raise ValueError(
            f"the image's {len(data)} bytes are no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file."
        ) from error
    width, height = image.size
    if width < 1 or height < 1:
        raise ValueError(f"the image has {width} x {height} pixels; it must have some.")
    if width * height > max_pixels:
        raise ValueError(
            f"the image has {width} x {height} pixels; at most {max_pixels} are read. "
            f"Send a smaller one."
        )
    if animated:
        raise ValueError(
            f"the image ({image.format}) is animated; send one of its frames, or all of it as a "
            f"video."
        )
    return image


def _turned(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # a picture is seen however broken its metadata are
        orientation = 1
    turn = TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # 16 bits of grey, which Pillow would clip to 255.
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")
