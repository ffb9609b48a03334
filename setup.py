"""Name the packages, python/sglang and python/srt as ``sglang.srt``, and make the README a
description for a package index.

The link python/sglang/srt is left out: an sdist has no links, and the runtime's files belong into a
wheel once.
"""

import os
import re
from pathlib import Path

from setuptools import find_namespace_packages, setup


def description(readme: str, source: str) -> str:
    """Return the README with links that work away from the project's folder.

    ``source`` is the address of the project's files, as "https://forge/owner/name/blob/v0.1.0";
    where it is empty, links to files become plain text and images are left out.
    """
    if source:
        images = source.replace("/blob/", "/raw/")
        readme = re.sub(r"!\[([^]]*)\]\((?!https?:)([^)]+)\)", rf"![\1]({images}/\2)", readme)
        return re.sub(r"(?<!!)\[([^]]+)\]\((?!https?:|#)([^)]+)\)", rf"[\1]({source}/\2)", readme)
    readme = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]+\)\n*", "", readme)
    return re.sub(r"\[([^]]+)\]\((?!https?:|#)[^)]+\)", r"\1", readme)


language = find_namespace_packages("python", exclude=["sglang.srt", "sglang.srt.*", "srt", "srt.*"])
runtime = find_namespace_packages("python", include=["srt", "srt.*"])
setup(
    packages=[*language, *(f"sglang.{name}" for name in runtime)],
    long_description=description(
        Path("README.md").read_text(encoding="utf-8"), os.environ.get("SGLANG_SOURCE_URL", "")
    ),
    long_description_content_type="text/markdown",
)
