"""``make wheels``: verify built wheels, each in a new environment.

    python -m tools.wheels dist

The kernels' wheel has one extension, for every Python from 3.10 on (abi3). It is installed alone
and computes a norm with each instruction set of this machine, which is compared with the plain
reference; torch and NumPy are those of the environment that runs this. The language's wheel is
installed without its dependencies and shows its version. The exit status is 1 where one fails.
"""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

KERNELS = """
import sys
sys.path.append({beside!r})
import torch
import sgl_kernel
from sgl_kernel import native, reference, rows
assert sgl_kernel.__file__.startswith({home!r}), sgl_kernel.__file__
assert native.AVAILABLE, native.WHY
x, weight = torch.randn(7, 256), torch.randn(256)
for isa in native.isas():
    native.choose(isa)
    found, expected = rows.norm(x, weight, 1e-6), reference.norm(x, weight, 1e-6)
    torch.testing.assert_close(found, expected)
print(f"kernels run: {{', '.join(native.isas())}}")
"""
LANGUAGE = """
import sglang
assert sglang.__file__.startswith({home!r}), sglang.__file__
print(f"sglang {{sglang.__version__}} is imported")
"""


class WheelFault(Exception):
    """The wheel is not what it must be. The text says why."""


def verify_names(wheel: Path) -> None:
    """Raise WheelFault where the kernels' wheel is not for every Python, or has no extension."""
    if not wheel.name.startswith("sgl_kernel"):
        return
    if not re.search(r"-cp310-abi3-\w+\.whl$", wheel.name):
        raise WheelFault(f"{wheel.name} is not for every Python from 3.10 on: no cp310-abi3")
    with zipfile.ZipFile(wheel) as archive:
        found = [name for name in archive.namelist() if name.endswith((".so", ".dylib"))]
    if found != ["sgl_kernel/_C.abi3.so"]:
        raise WheelFault(f"{wheel.name} has {found or 'no extension'}, not sgl_kernel/_C.abi3.so")


def verify_running(wheel: Path, python: str) -> str:
    """Install the wheel into a new environment of ``python`` and use it; what it printed. Raises
    WheelFault."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve() / "venv"
        if python == sys.executable:
            venv.create(home, with_pip=False, symlinks=True)
        else:
            _run([python, "-m", "venv", "--without-pip", str(home)])
        inside = str(home / "bin" / "python")
        _run([sys.executable, "-m", "pip", "--python", inside, "install", "--quiet", "--no-deps",
              "--no-index", str(wheel)])  # fmt: skip
        code = KERNELS if wheel.name.startswith("sgl_kernel") else LANGUAGE
        filled = code.format(home=str(home), beside=site.getsitepackages()[0])
        return _run([inside, "-I", "-c", filled]).strip()


def _run(command: Sequence[str]) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    if done.returncode:
        raise WheelFault(f"{' '.join(command)[:200]}\n{done.stderr}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Verify every wheel of a folder; the exit status."""
    (folder,) = sys.argv[1:] if argv is None else argv
    wheels = sorted(Path(folder).glob("*.whl"))
    if not wheels:
        print(f"{folder} has no wheel; build them with: make wheels", file=sys.stderr)
        return 1
    failed = False
    for wheel in wheels:
        try:
            verify_names(wheel)
            print(f"{wheel.name}: {verify_running(wheel, sys.executable)}")
        except WheelFault as fault:
            print(f"{wheel.name}: {fault}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
