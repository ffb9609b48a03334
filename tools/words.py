"""Riddles and retired words in docstrings and comments, and retired words on the pages of the
documentation: `python -m tools.words`.

A riddle begins with a pronoun, a relative, a preposition or a conjunction, so that a reader must
guess its subject. A retired word has a plain one instead. `tools/words.json` has the counts that
each file may have; they may only fall, and a file without an entry has none.

    python -m tools.words --list [PATH ...]     print each finding as path:line: text
    python -m tools.words --lower               lower the counts to today's, drop what is zero
    python -m tools.words --renamed COMMIT      let files renamed since COMMIT keep their counts
    python -m tools.words --since COMMIT        counts of files that were added or renamed since

The exit status is 1 where a file has more than it may have.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COUNTS = ROOT / "tools" / "words.json"
PAGES = ("*.md", "docs/**/*.md")
MEASURED = {"evaluation.md"}  # written by a benchmark
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
    | \bin[ ](?:(?:the|its|their|one)[ ])?places?(?:[ ]of)?\b
    | \b(?:takes?|taking|takes|took|taken)[ ](?:the|its|their)[ ]places?\b
    | \b(?:decimal|binary)[ ]places?\b
    | \b(?:chang|swapp|trad)(?:e|es|ed|ing)[ ]places\b
    | \b(?:tell|tells|told)[ ]apart\b
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


# Counts by kind, by path.
Table = Mapping[str, Mapping[str, int]]


class Finding(NamedTuple):
    """A riddle or a retired word; `kind` is a column of the table."""

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
    """Riddles and retired words of a source text."""
    for line, docstring, text in prose(source):
        first = WORD.match(text.lstrip(' \n"*-'))
        if first and first[0].lower() in (IN_DOCSTRINGS if docstring else IN_COMMENTS):
            yield Finding(line, "riddles", " ".join(text.split())[:80])
        yield from retired_words(text, line)


def page_findings(source: str) -> Iterator[Finding]:
    """Retired words of a page in Markdown. Its sentences may begin with any word."""
    yield from retired_words(hidden(NO_PROSE, source), 1)


def retired_words(text: str, line: int) -> Iterator[Finding]:
    """Retired words of a text that begins in a line."""
    plain = hidden(ORDINARY, text)
    for word in RETIRED_WORD.finditer(plain):
        at = line + plain.count("\n", 0, word.start())
        around = plain[max(0, word.start() - 30) : word.end() + 30]
        yield Finding(at, "words", f"{word[0]}: ... {' '.join(around.split())} ...")


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
        yield from (path for path in sorted(root.glob(pattern)) if path.name not in MEASURED)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if "sglang/srt" not in path.as_posix():
                yield path


def counted(root: Path = ROOT) -> Table:
    """Counts of each file that has any."""
    found = {}
    for path in sources(root):
        counts = Counter(each.kind for each in findings_of(path))
        if counts:
            found[path.relative_to(root).as_posix()] = dict(sorted(counts.items()))
    return found


def above(now: Table, allowed: Table) -> list[str]:
    """Counts above those of the table, a sentence for each."""
    return [
        f"{path}: {count} {kind}, at most {allowed.get(path, {}).get(kind, 0)}"
        for path, counts in now.items()
        for kind, count in counts.items()
        if count > allowed.get(path, {}).get(kind, 0)
    ]


def lowered(now: Table, allowed: Table) -> Table:
    """The table at today's counts, none higher than before."""
    found = {}
    for path, counts in allowed.items():
        least = {kind: min(count, now.get(path, {}).get(kind, 0)) for kind, count in counts.items()}
        if any(least.values()):
            found[path] = {kind: count for kind, count in least.items() if count}
    return found


def changed(commit: str, kind: str) -> list[str]:
    """Fields of `git diff --name-status -z`: files added (`A`) or renamed (`R`) since a commit."""
    listed = subprocess.run(
        ["git", "diff", "--find-renames", f"--diff-filter={kind}", "--name-status", "-z", commit],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return listed.stdout.split("\0")[:-1]


def renamed(commit: str, allowed: Table) -> Table:
    """The table with the new paths of files that were renamed since a commit."""
    names = changed(commit, "R")
    paths = dict(zip(names[1::3], names[2::3]))
    return dict(sorted((paths.get(path, path), counts) for path, counts in allowed.items()))


def since(commit: str, now: Table) -> Table:
    """Counts of the files that were added or renamed since a commit."""
    new = {*changed(commit, "A")[1::2], *changed(commit, "R")[2::3]}
    return {path: counts for path, counts in now.items() if path in new}


def load() -> Table:
    table: Table = {}
    if COUNTS.exists():
        table = json.loads(COUNTS.read_text(encoding="utf-8"))
    return table


def save(table: Table) -> None:
    lines = [f"  {json.dumps(path)}: {json.dumps(table[path])}" for path in sorted(table)]
    text = "{\n" + ",\n".join(lines) + "\n}\n" if lines else "{}\n"
    COUNTS.write_text(text, encoding="utf-8")


def total(table: Table) -> str:
    sums: Counter[str] = Counter()
    for counts in table.values():
        sums.update(counts)
    return f"{sums['riddles']:,} riddles and {sums['words']:,} retired words"


def listing(paths: Iterable[Path]) -> Iterator[str]:
    """`path:line: kind: text` of every finding."""
    for path in paths:
        for line, kind, text in findings_of(path):
            yield f"{path.resolve().relative_to(ROOT)}:{line}: {kind[:-1]}: {text}"


def chosen(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.words",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", nargs="*", type=Path, metavar="PATH", help="print the findings")
    parser.add_argument("--lower", action="store_true", help="lower the counts to today's")
    parser.add_argument("--renamed", metavar="COMMIT", help="give renamed files their counts")
    parser.add_argument("--since", metavar="COMMIT", help="print counts of new and renamed files")
    options = parser.parse_args(argv)
    if options.list is not None:
        print("\n".join(listing(chosen(options.list) if options.list else sources())))
        return 0
    now, allowed = counted(), load()
    if options.since:
        found = since(options.since, now)
        print("\n".join([*above(found, {}), total(found)]))
        return int(bool(found))
    if options.renamed:
        allowed = renamed(options.renamed, allowed)
        save(allowed)
    complaints = above(now, allowed)
    if options.lower:
        allowed = lowered(now, allowed)
        save(allowed)
    print("\n".join([*complaints, f"{total(now)}; at most {total(allowed)}"]))
    if complaints:
        print("python -m tools.words --list PATH prints them", file=sys.stderr)
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
