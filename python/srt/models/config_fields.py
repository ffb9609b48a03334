"""Fields: a JSON object of a checkpoint with typed, checked reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MAX_CONFIG_BYTES = 16 << 20
_LIMIT = 1 << 31
_LARGEST = sys.float_info.max
# Layers are made as often as the config says before any weight is read.
MAX_LAYERS = 1024
_MOST = dict.fromkeys(
    ("num_hidden_layers", "n_layer", "num_layers", "depth", "block_count"), MAX_LAYERS
)


class Fields:
    """A JSON object with typed reads; every error names the file, the key and the value."""

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self.values, self.source = values, source

    def assuming(self, **missing: Any) -> Fields:
        """The fields, with ``missing`` as defaults."""
        return Fields({**missing, **self.values}, self.source)

    def replacing(self, **values: Any) -> Fields:
        return Fields({**self.values, **values}, self.source)

    def error(self, key: str, problem: str) -> ValueError:
        return ValueError(f"{self.source}: {key} is {self.values.get(key)!r:.200}; {problem}")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def floats(self, key: str, low: float = 0.0) -> tuple[float, ...]:
        """A list of numbers, empty where there is none."""
        values = self.values.get(key)
        if values is None:
            return ()
        if not isinstance(values, list):
            raise self.error(key, "it must be a list of numbers.")
        return tuple(Fields({key: v}, self.source).float(key, low=low) for v in values)

    def int(self, key: str, default: int | None = None, low: int = 1) -> int:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ValueError(f"{self.source}: {key} is missing.")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.error(key, f"it must be an integer of at least {low}.")
        if value > (most := _MOST.get(key, _LIMIT - 1)):
            raise self.error(key, f"it must be at most {most}.")
        return value

    def float(self, key: str, default: float | None = None, low: float = 0.0) -> float:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ValueError(f"{self.source}: {key} is missing.")
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, "it must be a number.")
        if not -_LARGEST <= value <= _LARGEST or value < low:  # false of NaN; any whole number
            raise self.error(key, f"it must be a finite number of at least {low:g}.")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "it must be true or false.")
        return value

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, "it must be a string.")
        return value

    def fields(self, key: str) -> Fields:
        value = self.values.get(key)
        if value is None:
            return Fields({}, f"{self.source}: {key}")
        if not isinstance(value, dict):
            raise self.error(key, "it must be an object.")
        return Fields(value, f"{self.source}: {key}")


def read_json(path: Path) -> Fields:
    """The object in a JSON file. Raises ValueError, naming the file, where there is none."""
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise ValueError(f"{path} has {size} bytes; at most {MAX_CONFIG_BYTES} are read.")
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:  # a number may have too many digits
        raise ValueError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not hold a JSON object.")
    return Fields(value, str(path))
