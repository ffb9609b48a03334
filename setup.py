"""Name the packages: python/sglang, and python/srt as ``sglang.srt``.

The link python/sglang/srt is left out: an sdist has no links, and the runtime's files belong into a
wheel once.
"""

from setuptools import find_namespace_packages, setup

language = find_namespace_packages("python", exclude=["sglang.srt", "sglang.srt.*", "srt", "srt.*"])
runtime = find_namespace_packages("python", include=["srt", "srt.*"])
setup(packages=[*language, *(f"sglang.{name}" for name in runtime)])
