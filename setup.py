"""Packages and description of the distribution.

python/sglang, and python/srt as ``sglang.srt``. The link python/sglang/srt is left out: an sdist
has no links, and the runtime's files belong into a wheel once. Two variables of the environment:

SGLANG_LANGUAGE_ALONE=1  without the runtime and the embedded model: what `sglang chat --url` needs
SGLANG_SOURCE_URL=URL    address of the files, .../OWNER/NAME/blob/TAG, for the links of README.md
"""

import os
import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

# Packages of the runtime's folder that the language's commands use.
LANGUAGE_NEEDS = [
    "srt", "srt.core", "srt.config", "srt.files", "srt.commands", "srt.commands.bench",
]  # fmt: skip
DATA = {
    "sglang": ["py.typed", "views/timeline/assets/*"],
    "sglang.srt": ["assets/**/*", "web/page/static/**/*", "tokenizer/templates/*.jinja"],
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def description(readme: str, source: str) -> str:
    """Return the README with links that work away from the project's folder.

    ``source`` is the address of the files, as "https://forge/owner/name/blob/v0.1.0"; where
    it is empty, links to files become plain text and images are left out.
    """

    def link(found: re.Match) -> str:
        image, words, path = found.groups()
        if not source:
            return "" if image else words
        base = source.replace("/blob/", "/raw/") if image else source
        return f"{image}[{words}]({base}/{path})"

    return LINK.sub(link, readme)


def packages(alone: bool) -> list:
    """Names of the packages as they are installed."""
    language = find_namespace_packages(
        "python", exclude=["sglang.srt", "sglang.srt.*", "srt", "srt.*"]
    )
    runtime = find_namespace_packages("python", include=["srt", "srt.*"])
    runtime = LANGUAGE_NEEDS if alone else runtime
    return [*language, *(f"sglang.{name}" for name in runtime)]


if __name__ == "__main__":
    source = os.environ.get("SGLANG_SOURCE_URL", "").rstrip("/")
    only_language = os.environ.get("SGLANG_LANGUAGE_ALONE") == "1"
    links = {
        "Source": source.partition("/blob/")[0],
        "Documentation": f"{source}/docs/README.md",
        "Changelog": f"{source}/CHANGELOG.md",
    }
    setup(
        packages=packages(only_language),
        package_data={"sglang": DATA["sglang"]} if only_language else DATA,
        long_description=description(Path("README.md").read_text(encoding="utf-8"), source),
        long_description_content_type="text/markdown",
        project_urls=links if source else {},
    )
