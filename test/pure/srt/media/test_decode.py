"""Pictures from bytes: shown as viewers show them, and refused before they cost anything."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sglang.srt.media.image_file import picture

MOST = 1 << 20


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def corners(width: int = 6, height: int = 4) -> Image.Image:
    """Black, with a red corner above left and a green one above right."""
    image = Image.new("RGB", (width, height))
    image.putpixel((0, 0), (255, 0, 0))
    image.putpixel((width - 1, 0), (0, 255, 0))
    return image


def png(width: int, height: int, data: bytes) -> bytes:
    """A file whose header says what it likes; 8 bits of grey."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("format", ["PNG", "BMP", "GIF", "WEBP"])
def test_formats(format: str) -> None:
    options = {"lossless": True} if format == "WEBP" else {}
    found = picture(encoded(corners(), format, **options), MOST)
    assert found.mode == "RGB"
    assert np.array_equal(np.asarray(found), np.asarray(corners()))


# Where the red corner and the green one are seen, by EXIF orientation (EXIF 2.3, tag 274).
SEEN = {
    1: ((0, 0), (5, 0)), 2: ((5, 0), (0, 0)), 3: ((5, 3), (0, 3)), 4: ((0, 3), (5, 3)),
    5: ((0, 0), (0, 5)), 6: ((3, 0), (3, 5)), 7: ((3, 5), (3, 0)), 8: ((0, 5), (0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("orientation", SEEN)
def test_orientation(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = picture(encoded(corners(), "PNG", exif=exif), MOST)
    red, green = SEEN[orientation]
    assert found.getpixel(red) == (255, 0, 0)
    assert found.getpixel(green) == (0, 255, 0)


def test_broken_metadata_do_not_matter() -> None:
    found = picture(encoded(corners(), "PNG", exif=b"Exif\x00\x00MM\x00*" + b"\xff" * 40), MOST)
    assert found.size == (6, 4)


def test_transparency_is_white() -> None:
    image = Image.new("RGBA", (2, 1), (200, 0, 0, 0))
    image.putpixel((1, 0), (200, 0, 0, 51))
    found = picture(encoded(image, "PNG"), MOST)
    assert found.getpixel((0, 0)) == (255, 255, 255)
    assert found.getpixel((1, 0)) == (244, 204, 204)  # 0.2 of the colour, 0.8 of white


def test_a_palette_with_a_transparent_colour() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    found = picture(encoded(image, "PNG", transparency=0), MOST)
    assert found.getpixel((0, 0)) == (255, 255, 255)
    assert found.getpixel((1, 0)) == (40, 50, 60)


def test_sixteen_bits_of_grey() -> None:
    image = Image.fromarray(np.array([[0, 255, 256, 40000, 65535]], dtype=np.uint16))
    found = picture(encoded(image, "PNG"), MOST)
    pixels: list[Any] = [found.getpixel((i, 0)) for i in range(5)]
    assert [pixel[0] for pixel in pixels] == [0, 0, 1, 156, 255]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "CMYK"])
def test_other_modes(mode: str) -> None:
    image = Image.linear_gradient("L").resize((8, 8)).convert(mode)
    found = picture(encoded(image, "JPEG" if mode == "CMYK" else "PNG", quality=100), MOST)
    want = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(np.asarray(found).astype(int) - want).max() <= (4 if mode == "CMYK" else 0)


def test_the_first_picture_of_a_phones_file_is_read() -> None:
    out = io.BytesIO()
    corners(16, 16).save(out, "MPO", save_all=True, append_images=[Image.new("RGB", (16, 16))])
    assert Image.open(io.BytesIO(out.getvalue())).format == "MPO"
    assert picture(out.getvalue(), MOST).size == (16, 16)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_animations_are_refused(format: str) -> None:
    frames = [Image.new("RGB", (8, 8), (40 * i, 0, 0)) for i in range(3)]
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match=f"{format}.* is animated; send one of its frames"):
        picture(data, MOST)


@pytest.mark.parametrize(
    ("width", "height"), [(2000, 2000), (1 << 20, 2), (30000, 30000), (2**31 - 1, 2**31 - 1)]
)
def test_bombs_are_refused_by_their_headers(width: int, height: int) -> None:
    data = png(width, height, zlib.compress(bytes(1 << 20)))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"send a smaller one|Send a smaller one"):
        picture(data, MOST)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
def test_a_picture_without_pixels_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"must have some|no PNG, JPEG|cannot be decoded"):
        picture(png(*size, zlib.compress(b"")), MOST)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_truncated_files_are_refused(format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), format)
    for cut in (len(data) // 2, len(data) // 4, 12, 3, 0):
        with pytest.raises(ValueError, match=r"cannot be decoded|no PNG, JPEG"):
            picture(data[:cut], MOST)


@pytest.mark.parametrize(
    "data",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"II*\0",
        b"P6 9 9",
    ],
)
def test_other_formats_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no PNG, JPEG, WEBP, GIF or BMP file"):
        picture(data + bytes(100), MOST)


def test_mutations_end_well() -> None:
    """A mutated file gives a picture within bounds or a ValueError."""
    r = random.Random(0)
    noise = np.random.default_rng(1).integers(0, 256, (12, 9, 3), dtype=np.uint8)
    files = [encoded(Image.fromarray(noise), f) for f in ("PNG", "JPEG", "GIF", "WEBP", "BMP")]
    read = 0
    for _ in range(300):
        data = bytearray(r.choice(files))
        for _ in range(r.randint(1, 6)):
            data[r.randrange(len(data))] = r.randrange(256)
        try:
            found = picture(bytes(data), MOST)
        except ValueError:
            continue
        read += 1
        assert found.mode == "RGB"
        assert found.width * found.height <= MOST
    assert 0 < read < 300
