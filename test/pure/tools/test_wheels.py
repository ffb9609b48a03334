"""tools.wheels: a wheel that is not for every Python, or holds no extension, is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tools.wheels import WheelFault, main, verify_names, verify_running


def wheel(folder: Path, name: str, *files: str) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.writestr(file, "")
    return path


GOOD = "sgl_kernel-1-cp310-abi3-manylinux_2_35_x86_64.whl"


@pytest.mark.parametrize(
    ("name", "files", "fault"),
    [
        ("sgl_kernel-1-cp311-cp311-linux_x86_64.whl", ["sgl_kernel/_C.abi3.so"], "no cp310-abi3"),
        ("sgl_kernel-1-py3-none-any.whl", ["sgl_kernel/__init__.py"], "no cp310-abi3"),
        (GOOD, ["sgl_kernel/__init__.py"], "has no extension"),
        (GOOD, ["sgl_kernel/_C.abi3.so", "sgl_kernel.libs/libx.so"], "not sgl_kernel/_C.abi3.so"),
    ],
)
def test_verify_names_refuses(name: str, files: list[str], fault: str, tmp_path: Path) -> None:
    with pytest.raises(WheelFault, match=fault):
        verify_names(wheel(tmp_path, name, *files))


def test_verify_names_accepts(tmp_path: Path) -> None:
    verify_names(wheel(tmp_path, GOOD, "sgl_kernel/_C.abi3.so"))
    verify_names(wheel(tmp_path, "sglang-1-py3-none-any.whl"))


def test_main_needs_a_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "build them with: make wheels" in capsys.readouterr().err


@pytest.mark.slow
def test_a_wheel_that_cannot_be_installed_is_a_fault(tmp_path: Path) -> None:
    import sys

    with pytest.raises(WheelFault, match="pip"):
        verify_running(wheel(tmp_path, "sglang-1-py3-none-any.whl"), sys.executable)
