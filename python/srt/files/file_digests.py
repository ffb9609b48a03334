"""Digests of a model's files by samples: reading all of them would take as long as loading it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

SAMPLES = 16  # parts of a file that are read
SAMPLE_BYTES = 1 << 14
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


def model_files(location: Path, weights: bool) -> list[Path]:
    """Return the files that describe the model, and its weights where they count, in order."""
    if location.is_file():
        return [location]
    wanted = ("config.json", *WEIGHTS) if weights else ("config.json",)
    return sorted(path for path in location.iterdir() if path.name.endswith(wanted))


def sampled(path: Path) -> bytes:
    """Return a digest of a file's name, size and time, and of samples of its bytes. Raises
    OSError."""
    about = path.stat()
    return _samples(path, f"{path.name} {about.st_size} {about.st_mtime_ns}", about.st_size)


def sampled_bytes(path: Path) -> bytes:
    """Return the same without the file's time, which copies on several machines do not share."""
    size = path.stat().st_size
    return _samples(path, f"{path.name} {size}", size)


def _samples(path: Path, about: str, size: int) -> bytes:
    digest = sha256(about.encode())
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(size * number // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
