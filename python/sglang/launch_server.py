"""``python -m sglang.launch_server``: the server of ``srt``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the server until a signal ends it."""
    try:
        from sglang.srt.web.launch import main as launch

        sys.exit(launch())
    except KeyboardInterrupt:
        sys.exit(130)
    except ImportError as error:
        sys.exit(
            "the server needs more than the language: "
            f"pip install -e '.[cpu]' in the project's folder ({error})"
        )


if __name__ == "__main__":
    main()
