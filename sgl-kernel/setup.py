"""Builds the extension where there is a C++ compiler; without one the package installs all the
same, and computes with torch. SGL_KERNEL_REQUIRE=1 turns a failed build into an error."""

import glob
import os

from setuptools import Extension, find_packages, setup

# One flag a line, read by clangd and by `make kernels-asan` too. Instruction sets are chosen at run
# time: nothing there may depend on the machine that builds. -g0 -O3: setuptools would add Python's
# own -g -O2. Contraction gives fused multiply-adds, the same everywhere in one file; nothing else
# that changes results is allowed. gcc 12 warns of its own headers of intrinsics.
FLAGS = "csrc/compile_flags.txt"
with open(FLAGS, encoding="utf-8") as file:
    flags = file.read().split()

native = Extension(
    "sgl_kernel._C",
    sorted(glob.glob("csrc/*.cpp")),
    depends=[FLAGS, *sorted(glob.glob("csrc/*.h") + glob.glob("csrc/*.inl"))],
    language="c++",
    extra_compile_args=flags,
    extra_link_args=["-pthread"],
    py_limited_api=True,
    optional=os.environ.get("SGL_KERNEL_REQUIRE") != "1",
)

setup(
    package_dir={"": "python"},
    packages=find_packages("python"),
    package_data={"sgl_kernel": ["py.typed"]},
    ext_modules=[native],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
