"""The section about adapters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sglang.srt.config.sections import flag

MAX_NAME = 256  # characters


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA), one for each request."""

    enable_lora: bool = flag(False, "adapters may be loaded; --lora-paths says so too")
    lora_paths: tuple[str, ...] = flag((), "adapters to load, each NAME=PATH, or a PATH alone")
    lora_dir: str = flag(
        "", "directory whose adapters POST /load_lora_adapter may load; default: those of "
        "--lora-paths alone",
    )  # fmt: skip
    max_lora_rank: int = flag(64, "largest rank of an adapter", type=int)
    max_loras_per_batch: int = flag(
        32, "adapters that one pass may use, and that a GPU holds at once", type=int
    )
    max_loaded_loras: int = flag(128, "adapters that may be loaded at once", type=int)
    lora_target_modules: tuple[str, ...] = flag(
        (), "modules that adapters may change (q_proj, ...); default: all that can be"
    )

    @property
    def enabled(self) -> bool:
        return self.enable_lora or bool(self.lora_paths)

    def named(self) -> Iterator[tuple[str, str]]:
        """Name and path of each of ``lora_paths``."""
        for entry in self.lora_paths:
            name, equals, path = entry.partition("=")
            yield (name, path) if equals else (entry, entry)

    def verify(self) -> None:
        """Raise ValueError, naming the flag, its value and its limit."""
        for name in ("max_lora_rank", "max_loras_per_batch", "max_loaded_loras"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1"
                )
        names = [name for name, _ in self.named()]
        for name, path in self.named():
            if not name or len(name) > MAX_NAME or not name.isprintable() or not path:
                raise ValueError(
                    f"--lora-paths has {name!r:.80}={path!r:.80}; give NAME=PATH, the name "
                    f"printable and of at most {MAX_NAME} characters"
                )
            if names.count(name) > 1:
                raise ValueError(f"--lora-paths names {name!r} twice; each needs a name of its own")
        if len(names) > self.max_loaded_loras:
            raise ValueError(
                f"--lora-paths has {len(names)} adapters; at most {self.max_loaded_loras} "
                "(--max-loaded-loras)"
            )
