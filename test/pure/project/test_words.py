"""Plain words: riddles, retired words, long names and long lines are found, good ones are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.words import findings, findings_of, listing, main, page_findings

RIDDLES = [
    '"""What a worker needs."""',
    'def f():\n    """Of the tokens, the last."""',
    'class C:\n    """Those that wait."""\n',
    'class C:\n    # fields\n    """And its opposite."""\n',
    'def f(\n    a,\n):\n    "As ``g``, for one row."\n',
    'async def f() -> dict[str, int]:\n    r"""\n    In one line.\n    """\n',
    "# it is closed by now\nx = 1",
    "x = 1  # which is enough",
    "# And the rest.",
    "x = 1\n# Whose pages are free.\ny = 2",
    "#  What follows is free\n#  text.",
]


@pytest.mark.parametrize("source", RIDDLES)
def test_a_riddle_is_found(source: str) -> None:
    assert [each.kind for each in findings(source)] == ["riddle"]


RETIRED = [
    '"""Number of draws."""',
    '"""Pages.\n\nTokens that are drawn greedily."""',
    "# the request has been told so",
    "x = 1  # read by nobody",
    '"""Forward passes under way."""',
    '"""A model that sees."""',
    "# the place of a row",
    '"""Tokens met in the cache."""',
]


@pytest.mark.parametrize("source", RETIRED)
def test_a_retired_word_is_found(source: str) -> None:
    assert [each.kind for each in findings(source)] == ["word"]


GOOD = [
    '"""Return the pages of a row."""',
    '"""``What`` is a name."""',
    '"""Whether the row samples."""',
    '"""None where no token was sampled."""',
    '"""This machine, with the model and its flags."""',
    '"""Sort the rows in place, one in place of another."""',
    '"""Draw a page."""',
    '"""Numbers with two decimal places."""',
    '"""The method ``draw`` of a strategy."""',
    'class C:\n    """A tool.\n\n    Attributes:\n        place: an index.\n    """',
    'x = """What a program says."""',
    'f("who")',
    'TABLE = {\n    "of": "what",\n    "told": "nobody",\n}',
    "x = '# what'\n",
    'x = f"""\n# what a text holds\n"""',
    "# Where the pool is full, the youngest request is retracted.",
    "# On a GPU the launch returns at once.",
    "import os  # noqa: F401",
    "x = 1  # fmt: skip",
    "# Requests are sorted by age:\n# those of one client together.",
    "if x:  # the rows\n    pass  # end",
]


@pytest.mark.parametrize("source", GOOD)
def test_a_good_sentence_passes(source: str) -> None:
    assert list(findings(source)) == []


PAGE = """# Who may call

A token is drawn; what follows is told.
`drawn`, [a link](who.md), <a href="nobody">text</a>, told apart, two decimal places.

    he(drawn)

```python
x = drawn(told)
```

Pages met in
the cache.
"""


def test_retired_words_of_a_page_are_found() -> None:
    found = [(each.line, each.kind, each.text.partition(":")[0]) for each in page_findings(PAGE)]
    assert found == [(1, "word", "Who"), (3, "word", "drawn"), (3, "word", "told"),
                     (12, "word", "met")]  # fmt: skip


def test_a_long_name_of_a_test_is_found() -> None:
    name = "test_" + "a" * 56
    others = f"def {name[:60]}():\n    ...\ndef {name[5:]}_{name}():\n    ...\n"
    source = f"x = 1\ndef {name}():\n    ...\n{others}"
    assert list(findings(source)) == [(2, "name", name)]


def test_long_prose_is_found_tables_and_code_are_not() -> None:
    fits, long = "- " + "word " * 23 + "end", "- " + "word " * 23 + "ended"
    assert (len(fits), len(long)) == (120, 122)
    wide = [f"| {long} |", f"    {long}", f"```console\n{long}\n```", f"<img {long}>", "x" * 200]
    source = "\n\n".join([*wide, fits, long])
    assert [(each.line, each.kind) for each in page_findings(source)] == [(15, "line")]


def test_a_page_may_begin_with_any_word(tmp_path: Path) -> None:
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("# What it is\n\nWhich is a sentence.\n# Of these\n")
    module.write_text('"""What it is."""\n')
    assert list(findings_of(page)) == []
    assert [each.kind for each in findings_of(module)] == ["riddle"]


def test_findings_have_their_lines() -> None:
    source = '"""Words.\n\nText that was drawn.\n"""\n\nx = 1\n# What is it?\n'
    assert [(each.line, each.kind) for each in findings(source)] == [(3, "word"), (7, "riddle")]


def test_a_listing_names_the_file() -> None:
    assert list(listing([Path(__file__)])) == []
    assert main([__file__]) == 0
