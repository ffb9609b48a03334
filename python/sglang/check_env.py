"""``python -m sglang.check_env``: the versions and the device that a server here would have.

``sglang doctor`` examines more: the model, the port, keys and a running server.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from sglang.version import __version__

PACKAGES = (
    "torch", "sgl-kernel", "triton", "flashinfer-python", "transformers", "tokenizers", "numpy",
    "huggingface_hub", "interegular", "outlines-core", "llguidance", "msgspec", "pyzmq", "psutil",
    "pydantic", "uvicorn", "starlette", "openai", "anthropic", "litellm",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Print it, a line each; the exit code of what ``sglang doctor`` finds of it."""
    import argparse

    argparse.ArgumentParser(
        prog="python -m sglang.check_env", description=(__doc__ or "").partition("\n\n")[0]
    ).parse_args(argv)
    print(f"Python: {sys.version.replace(chr(10), ' ')}")
    print(f"sglang: {__version__}")
    for name in PACKAGES:
        print(f"{name}: {_version(name)}")
    print(f"ulimit soft: {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}")
    from sglang.srt.commands.doctor import machine_checks as machine
    from sglang.srt.commands.doctor.finding import FAIL, examine
    from sglang.srt.config import Config

    checks = [("packages", machine.packages), ("device", lambda: machine.device(Config()))]
    found = examine(checks)
    for each in found:
        print(f"{each.check}: {each.found}" + (f" ({each.fix})" if each.fix else ""))
    return int(any(each.state == FAIL for each in found))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    sys.exit(main())
