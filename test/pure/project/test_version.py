"""The version stands in one place, and everything that names it agrees."""

from __future__ import annotations

import re

from helpers.paths import ROOT
from sglang.srt.core.version import __version__ as runtime
from sglang.version import __version__


def test_the_version_is_that_of_the_kernels_and_the_runtime() -> None:
    kernels = (ROOT / "sgl-kernel" / "pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'(?m)^version = "(.*)"$', kernels) == [__version__]
    assert runtime == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__), "a tag is v and this"


def test_the_changelog_has_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    titles = re.findall(r"(?m)^## (.*)$", changelog)
    assert __version__ in titles[:2], "the newest, below what is unreleased"


def test_the_readme_becomes_a_description_without_broken_links() -> None:
    source = (ROOT / "setup.py").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    exec(source[: source.index("language = ")], names)
    describe = names["description"]
    assert callable(describe)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    plain = describe(readme, "")
    linked = describe(readme, "https://forge.example/owner/sglang/blob/v1")
    for text in (plain, linked):
        assert not re.findall(r"\]\((?!https?:)", text)
    assert "docs/install.md" not in plain
    assert "[install](https://forge.example/owner/sglang/blob/v1/docs/install.md)" in linked
    assert "(https://forge.example/owner/sglang/raw/v1/docs/images/sharing.svg)" in linked
