"""Location: from what a user calls a model to a local directory."""

from __future__ import annotations

import re
from pathlib import Path

EMBEDDED = Path(__file__).parents[1] / "assets" / "sglang-tiny"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
PATTERNS = ["*.json", "*.safetensors"]


def locate(model_path: str, revision: str = "") -> Path:
    """A directory with ``config.json``: a local one, the embedded model's for "" or its name, or a
    hub repository's, downloaded if needed.

    Raises ValueError, with the way out, where there is none.
    """
    local = Path(model_path).expanduser()
    if not model_path or (model_path == EMBEDDED.name and not local.exists()):
        if not (EMBEDDED / "config.json").is_file():
            raise ValueError(f"the embedded model is missing from {EMBEDDED}; give a model path.")
        return EMBEDDED
    if local.is_dir():
        return local
    if local.exists():
        raise ValueError(f"model path {model_path} is a file; give the directory it is in.")
    if not HUB_ID.fullmatch(model_path):
        raise ValueError(
            f"model path {model_path!r} is no directory here and no hub id (owner/name)."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(model_path, revision=revision or None, allow_patterns=PATTERNS)
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"model path {model_path!r} is no directory here, and it could not be fetched from "
            f"the hub ({type(error).__name__}: {str(error).splitlines()[0]}). Without a network, "
            f"give a local directory, or omit the path to use the embedded model."
        ) from error
