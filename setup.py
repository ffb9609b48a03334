"""Packages and description of the distribution.

python/sglang, and python/srt as ``sglang.srt``. The link python/sglang/srt is left out: an sdist
has no links, and the runtime's files belong into a wheel once. Two variables of the environment:

SGLANG_LANGUAGE_ALONE=1  without the runtime and the embedded model: what `sglang chat --url` needs
SGLANG_PROJECT_URL=URL   home of the repository: the links of README.md lead there
"""

import os
import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

# What the language's commands use of the runtime's folder.
LANGUAGE_NEEDS = ["srt", "srt.core", "srt.config", "srt.commands", "srt.commands.bench"]
DATA = {
    "sglang": ["py.typed", "views/timeline/assets/*"],
    "sglang.srt": ["assets/**/*", "web/page/static/**/*", "tokenizer/templates/*.jinja"],
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def described(text: str, url: str) -> str:
    """README.md as a package index shows it: relative links lead into the repository at ``url``.
    Without one, links become their words and images are left out, since they would lead nowhere."""

    def link(found: re.Match) -> str:
        image, words, path = found.groups()
        if not url:
            return "" if image else words
        return f"{image}[{words}]({url}/{'raw' if image else 'blob'}/main/{path})"

    return LINK.sub(link, text)


def packages(alone: bool) -> list:
    """Names of the packages as they are installed."""
    language = find_namespace_packages(
        "python", exclude=["sglang.srt", "sglang.srt.*", "srt", "srt.*"]
    )
    runtime = find_namespace_packages("python", include=["srt", "srt.*"])
    runtime = LANGUAGE_NEEDS if alone else runtime
    return [*language, *(f"sglang.{name}" for name in runtime)]


if __name__ == "__main__":
    home = os.environ.get("SGLANG_PROJECT_URL", "").rstrip("/")
    only_language = os.environ.get("SGLANG_LANGUAGE_ALONE") == "1"
    links = {"Source": "", "Documentation": "/blob/main/docs/README.md",
             "Changelog": "/blob/main/CHANGELOG.md"}  # fmt: skip
    setup(
        packages=packages(only_language),
        package_data={"sglang": DATA["sglang"]} if only_language else DATA,
        long_description=described(Path("README.md").read_text(encoding="utf-8"), home),
        long_description_content_type="text/markdown",
        project_urls={name: home + path for name, path in links.items()} if home else {},
    )
