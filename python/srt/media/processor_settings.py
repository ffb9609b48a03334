"""Settings: the preparation of pixels, as a checkpoint's files describe it.

    preprocessor_config.json          of images; of videos too, where nothing else says
    video_preprocessor_config.json    of videos
    processor_config.json             the text of placeholders; in newer checkpoints all of these

Read in the server, which resizes, and in the worker, which normalises.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

MAX_BYTES = 1 << 20
MAX_SIDE = 1 << 14
Colour = tuple[float, float, float]

CLIP_MEAN: Colour = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Colour = (0.26862954, 0.26130258, 0.27577711)


class Size(NamedTuple):
    """Size of a resized picture: its shortest side, or where that is 0, both sides."""

    height: int
    width: int
    shortest: int = 0


class Settings:
    """A JSON object with typed reads; every error names the file, the key and the value."""

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self.values, self.source = values, source

    def error(self, key: str, problem: str) -> ValueError:
        return ValueError(f"{self.source}: {key} is {self.values.get(key)!r}; {problem}")

    def object(self, key: str) -> Settings:
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(key, "it must be an object.")
        return Settings(value or {}, f"{self.source}: {key}")

    def int(self, key: str, missing: int, low: int = 1, high: int = MAX_SIDE) -> int:
        value = self.values.get(key)
        if value is None:
            return missing
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, f"it must be an integer from {low} to {high}.")
        return value

    def flag(self, key: str, missing: bool) -> bool:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, "it must be true or false.")
        return missing if value is None else value

    def text(self, key: str, missing: str) -> str:
        """Newer files say {"content": text} of a token."""
        value = self.values.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if value is not None and not isinstance(value, str):
            raise self.error(key, "it must be a string.")
        return missing if value is None else value

    def number(self, key: str, missing: float) -> float:
        value = self.values.get(key, missing)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, "it must be a number.")
        if not math.isfinite(value) or value <= 0:
            raise self.error(key, "it must be finite and above 0.")
        return float(value)

    def colour(self, key: str, missing: Colour) -> Colour:
        value = self.values.get(key)
        if value is None:
            return missing
        if isinstance(value, (int, float)):
            value = [value] * 3
        if not isinstance(value, list) or len(value) != 3:
            raise self.error(key, "it must list three numbers.")
        for one in value:
            if isinstance(one, bool) or not isinstance(one, (int, float)) or not math.isfinite(one):
                raise self.error(key, "it must list three finite numbers.")
        return (float(value[0]), float(value[1]), float(value[2]))

    def size(self, key: str, missing: Size) -> Size:
        """A number stands for the shortest side."""
        value = self.values.get(key)
        if value is None:
            return missing
        if isinstance(value, dict):
            sides = Settings(value, f"{self.source}: {key}")
            if "shortest_edge" in value:
                return Size(0, 0, sides.int("shortest_edge", 0))
            if "height" in value and "width" in value:
                return Size(sides.int("height", 0), sides.int("width", 0))
            raise self.error(key, "it must have shortest_edge, or height and width.")
        return Size(0, 0, self.int(key, 0))


class Normalisation(NamedTuple):
    """``(level * scale - mean) / std`` of each channel's levels 0 to 255."""

    scale: float
    mean: Colour
    std: Colour

    @staticmethod
    def of(settings: Settings) -> Normalisation:
        half = (0.5, 0.5, 0.5)
        siglip = settings.text("image_processor_type", "").startswith("Siglip")
        mean, std = (half, half) if siglip else (CLIP_MEAN, CLIP_STD)
        scale = settings.number("rescale_factor", 1 / 255)
        if not settings.flag("do_rescale", True):
            scale = 1.0
        if not settings.flag("do_normalize", True):
            return Normalisation(scale, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        deviation = settings.colour("image_std", std)
        if 0.0 in deviation:
            raise settings.error("image_std", "none of them may be 0.")
        return Normalisation(scale, settings.colour("image_mean", mean), deviation)


class SettingsFiles(NamedTuple):
    """The settings of a model directory; empty ones where a file is missing."""

    image: Settings
    video: Settings
    processor: Settings

    @staticmethod
    def of(directory: Path) -> SettingsFiles:
        """Read the settings of images and videos. Raises ValueError, naming the file, where one
        cannot be read."""
        processor = _read(directory / "processor_config.json")
        image, video = processor.object("image_processor"), processor.object("video_processor")
        if not image.values:
            image = _read(directory / "preprocessor_config.json")
        if not video.values:
            video = _read(directory / "video_preprocessor_config.json")
        return SettingsFiles(image, video if video.values else image, processor)


class Norms(NamedTuple):
    """Normalisation of images and of videos."""

    image: Normalisation
    video: Normalisation

    @staticmethod
    def of(directory: Path) -> Norms:
        """Read the normalisations of images and videos. Raises ValueError."""
        files = SettingsFiles.of(directory)
        return Norms(Normalisation.of(files.image), Normalisation.of(files.video))


def _read(path: Path) -> Settings:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path} has {path.stat().st_size} bytes; at most {MAX_BYTES} count.")
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Settings({}, str(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} does not hold a JSON object.")
    return Settings(values, str(path))
