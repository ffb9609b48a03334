"""The section of a Config about files and batches."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.config.sections import flag

_LEAST = {"concurrency": 1, "max_lines": 1, "max_file_bytes": 1, "max_bytes": 1}


@dataclass(frozen=True)
class BatchesConfig:
    """Files that clients upload, and batches of requests that are run from them."""

    batch_dir: str = flag(
        "", "directory, only for this server, for /v1/files and /v1/batches; none: they are refused"
    )
    batch_concurrency: int = flag(8, "requests of batches that run at once, at most", type=int)
    batch_max_lines: int = flag(50_000, "requests of one batch, at most", type=int)
    batch_max_file_bytes: int = flag(200_000_000, "bytes of one uploaded file, at most", type=int)
    batch_max_bytes: int = flag(
        10_000_000_000, "bytes of all files in --batch-dir, at most", type=int
    )

    def verify(self) -> None:
        """Raise ValueError for a value out of range."""
        for name, least in _LEAST.items():
            value = getattr(self, f"batch_{name}")
            if value < least:
                raise ValueError(
                    f"--batch-{name.replace('_', '-')} is {value}; it must be at least {least}"
                )
