"""``python -m sglang.launch_server``: the server of ``srt``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the server until it is told to end."""
    try:
        from srt.server.launch import main as launch
    except ImportError as error:
        sys.exit(f"the server needs more than the language: pip install 'sglang[srt]' ({error})")
    sys.exit(launch())


if __name__ == "__main__":
    main()
