"""The section about images and videos."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglang.srt.config.sections import flag


@dataclass(frozen=True)
class MediaConfig:
    """Images and videos in prompts."""

    max_media_per_prompt: int = flag(32, "images and videos in one prompt", type=int)
    max_media_bytes: int = flag(32 << 20, "of one encoded image or video", type=int)
    max_image_pixels: int = flag(1 << 26, "of one picture, before it is resized", type=int)
    max_video_frames: int = flag(64, "taken from one video", type=int)
    media_threads: int = flag(2, "images and videos decoded at once", type=int)
    media_cache_bytes: int = flag(
        256 << 20, "decoded media, and hidden states of the vision tower, that are kept", type=int
    )
    allowed_local_media_path: str = flag(
        "", "directory whose files requests may name; default: none may be named"
    )
    allow_remote_media: bool = flag(False, "fetch images and videos from any public host")
    allowed_media_domains: str = flag(
        "", "fetch them from these hosts alone, with commas; subdomains are hosts of their own"
    )
    media_fetch_timeout: float = flag(10.0, "seconds one fetch may take", type=float)

    def verify(self) -> None:
        """Raise ValueError, naming the flag, its value and its limit."""
        for name in (
            "max_media_bytes", "max_image_pixels", "max_video_frames", "media_threads",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1"
                )
        for name in ("max_media_per_prompt", "media_cache_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be 0 or more"
                )
        if not 0 < self.media_fetch_timeout < math.inf:
            raise ValueError(
                f"--media-fetch-timeout is {self.media_fetch_timeout}; it must be above 0, and "
                "finite"
            )
