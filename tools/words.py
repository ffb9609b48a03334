"""Plain words: `python -m tools.words` finds riddles and retired words in docstrings and comments,
names of tests above 60 characters, and retired words and long lines on the pages in Markdown.

A riddle begins with a pronoun, a relative, a preposition or a conjunction, so that a reader must
guess its subject. A retired word has a plain one instead: ``RETIRED``. A line of prose has at most
120 columns; tables and code may be wider. Each finding is printed as ``path:line: kind: text``; the
exit status is 1 where there is one.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "*.md", "docs/**/*.md", "benchmark/**/*.md", "sgl-kernel/*.md", "test/data/*.md",
    "tools/**/*.md",
)  # fmt: skip
TEST_NAME = 60  # characters
COLUMNS = 120  # of a line of prose
FOLDERS = ("python", "sgl-kernel", "tools", "benchmark", "test", "examples")

PRONOUNS = """
    it its they their them these those that he she his her our we you
    who whom whose whoever nobody somebody everybody anybody
"""
RELATIVES = "what which whichever whatever how why"
CONJUNCTIONS = "and or but nor"
# First words that a comment may have and a docstring may not: a comment may be a whole sentence.
CLAUSES = "where wherever when whenever while so since as until before after"
PREPOSITIONS = """
    in on at by for from with without to under over behind between among beside besides beyond
    during against through into like above below within across around along per than towards about
"""
IN_COMMENTS = frozenset(f"{PRONOUNS} {RELATIVES} {CONJUNCTIONS} of".split())
IN_DOCSTRINGS = IN_COMMENTS | frozenset(f"{CLAUSES} {PREPOSITIONS}".split())

# Retired words, and what to write.
RETIRED = {
    r"draws?|drawn|drawing|drew": "sample, sampled; generate, generated",
    r"told|untold": "emitted, buffered; documented, reported",
    r"asked": "requested",
    r"tips?": "last position",
    r"places?": "index, position, offset",
    r"met": "cached, matched",
    r"under way": "in flight",
    r"desks?": "workspace",
    r"shadows?": "the draft model's request",
    r"who|whom|whoever|nobody|somebody|everybody|anybody|he|him|his": "client, caller, ...",
    r"models? that sees?": "multimodal model",
}
RETIRED_WORD = re.compile(rf"\b(?:{'|'.join(RETIRED)})\b", re.IGNORECASE)

# Names in backquotes or in a list of attributes, and phrases in which a retired word is ordinary.
ORDINARY = re.compile(
    r"""`+[^`]*`+
    | ^[ ]+\w+(?:,[ ]\w+)*:
    | \bin\s(?:(?:the|its|their|one)\s)?places?(?:\sof)?\b
    | \b(?:takes?|taking|takes|took|taken)\s(?:the|its|their)\splaces?\b
    | \b(?:decimal|binary)\splaces?\b
    | \(tips\)
    | \b(?:chang|swapp|trad)(?:e|es|ed|ing)\splaces\b
    | \b(?:tell|tells|told)\sapart\b
    | \b(?:draws?|drawn|drawing)[ ](?:a[ ]|the[ ]|as[ ]a[ ]|in[ ]|on[ ])?
      (?:page|plot|chart|curve|line|figure|canvas|SVG|graph|bar|picture|black|white)s?\b
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)

# Code on a page, addresses of links, and tags.
NO_PROSE = re.compile(
    r"""^(?P<fence>`{3,}|~{3,})[\s\S]*?^(?P=fence)[^\n]*$
    | ^(?:[ ]{4}|\t)[^\n]*$
    | \]\([^)\n]*\)
    | <[^>\n]*>""",
    re.VERBOSE | re.MULTILINE,
)

# Marks of tools, which are no prose.
MARKS = re.compile(r"\s*(?:noqa|type:|fmt:|ruff:|pragma|!)")

# A string or a comment. What stands between two of them is code.
TOKEN = re.compile(
    r"""(?:\b[rRbBuUfF]{1,2})?
    (?P<text>\"\"\"(?:[^\\]|\\.)*?\"\"\" | '''(?:[^\\]|\\.)*?'''
      | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
    | \#(?P<comment>[^\n]*)""",
    re.VERBOSE | re.DOTALL,
)
WORD = re.compile(r"[A-Za-z][\w'-]*")
LONG_NAME = re.compile(rf"^[ ]*(?:async )?def (test_\w{{{TEST_NAME - 4},}})", re.MULTILINE)
# A line that can be broken: no row of a table, and with a space behind its first word.
LONG_LINE = re.compile(rf"^(?![ ]*\|)(?=.{{{COLUMNS + 1}}})[ ]*\S+[ ].*", re.MULTILINE)


class Finding(NamedTuple):
    """A finding of a kind: "riddle", "word", "name" or "line"."""

    line: int
    kind: str
    text: str


def prose(source: str) -> Iterator[tuple[int, bool, str]]:
    """First line of each docstring and comment, whether it is a docstring, and its text. Comments
    on consecutive lines are one."""
    end, before, line, last = 0, "", 1, -1
    comment: list[str] = []
    start = 0
    for token in TOKEN.finditer(source):
        code = source[end : token.start()].strip()
        line += source.count("\n", end, token.start())
        end, before = token.end(), code[-1:] or before
        if token["comment"] is not None:
            if comment and (line != last + 1 or MARKS.match(token["comment"])):
                yield start, False, "\n".join(comment)
                comment = []
            if not MARKS.match(token["comment"]):
                start = start if comment else line
                comment.append(token["comment"])
                last = line
            continue
        alone = not source[source.rfind("\n", 0, token.start()) + 1 : token.start()].strip()
        if alone and before in ("", ":"):
            yield line, True, token["text"].strip("\"'")
        before = '"'
        line += token[0].count("\n")
    if comment:
        yield start, False, "\n".join(comment)


def findings(source: str) -> Iterator[Finding]:
    """Riddles, retired words and long names of tests of a source text."""
    for name in LONG_NAME.finditer(source):
        yield Finding(line_of(source, name.start()), "name", name[1])
    for line, docstring, text in prose(source):
        first = WORD.match(text.lstrip(' \n"*-'))
        if first and first[0].lower() in (IN_DOCSTRINGS if docstring else IN_COMMENTS):
            yield Finding(line, "riddle", " ".join(text.split())[:80])
        yield from retired_words(text, line)


def page_findings(source: str) -> Iterator[Finding]:
    """Retired words and long lines of a page in Markdown. Its sentences may begin with any word."""
    plain = hidden(NO_PROSE, source)
    yield from retired_words(plain, 1)
    for long in LONG_LINE.finditer(plain):
        yield Finding(
            line_of(plain, long.start()), "line", f"{len(long[0])} columns: {long[0][:40]}"
        )


def retired_words(text: str, line: int) -> Iterator[Finding]:
    """Retired words of a text that begins in a line."""
    plain = hidden(ORDINARY, text)
    for word in RETIRED_WORD.finditer(plain):
        at = line + plain.count("\n", 0, word.start())
        around = plain[max(0, word.start() - 30) : word.end() + 30]
        yield Finding(at, "word", f"{word[0]}: ... {' '.join(around.split())} ...")


def line_of(text: str, index: int) -> int:
    """Number of the line, from 1, of a character."""
    return text.count("\n", 0, index) + 1


def hidden(pattern: re.Pattern[str], text: str) -> str:
    """The text with dashes where the pattern matches; its lines stay."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", "-", found[0]), text)


def findings_of(path: Path) -> Iterator[Finding]:
    """Findings of a file: a page in Markdown or a module in Python."""
    source = path.read_text(encoding="utf-8")
    return page_findings(source) if path.suffix == ".md" else findings(source)


def sources(root: Path = ROOT) -> Iterator[Path]:
    """Python files and pages of the project. The link python/sglang/srt is not followed."""
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if "sglang/srt" not in path.as_posix():
                yield path


def listing(paths: Iterable[Path]) -> Iterator[str]:
    """`path:line: kind: text` of every finding."""
    for path in paths:
        for line, kind, text in findings_of(path):
            yield f"{path.resolve().relative_to(ROOT)}:{line}: {kind}: {text}"


def chosen(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.words",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH",
        help="files, or folders of Python files; none: the whole project",
    )  # fmt: skip
    paths = parser.parse_args(argv).paths
    found = list(listing(chosen(paths) if paths else sources()))
    print("\n".join([*found, f"{len(found)} findings"]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
