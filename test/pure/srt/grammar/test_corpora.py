"""Real regexes and real JSON schemas, carried as the server carries them: plan, then grammar.

The vocabulary is the 256 bytes, so that any text has one tokenisation and the language alone is
tested. ``GRAMMAR_CASES=all`` takes the whole lists, ``GRAMMAR_CASES=N`` the first N of each.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pytest
from helpers.corpora import DATA, regexes, schemas, suite
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from sglang.ir.constraint import Constraint
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.compile_plan import build_grammar, make_plan
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, GrammarError

CASES = os.environ.get("GRAMMAR_CASES", "")
EOS = 256
T = TypeVar("T")


def some(rows: Sequence[T], count: int) -> Sequence[T]:
    """``count`` of them, or as many as the environment asks for."""
    if CASES == "all":
        return rows
    return rows[: max(count, int(CASES or "0"))]


def encode(texts: Sequence[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


BYTES = Vocabulary(
    (*(bytes([byte]) for byte in range(256)), b""), EOS + 1, (EOS,), frozenset({EOS}), encode
)


def accepts(grammar: CompiledGrammar, text: str, masks: bool) -> bool:
    """Whether ``text`` may be generated and end; ``masks``: each token must be in its mask too."""
    matcher = grammar.matcher()
    for token in text.encode():
        if masks and not allowed(matcher.mask(), token):
            assert not matcher.advance(token), f"{text!r}: byte {token} is not in the mask"
            return False
        if not matcher.advance(token):
            assert not masks, f"{text!r}: byte {token} is in the mask and refused"
            return False
    if masks:
        assert allowed(matcher.mask(), EOS) == matcher.accepting
    return matcher.accepting


def allowed(mask: bytes, token: int) -> bool:
    return bool(np.frombuffer(mask, np.uint8)[token >> 3] >> (token & 7) & 1)


@dataclass
class Verdicts:
    """Outcome of each schema, with the reason."""

    right: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    too_narrow: list[str] = field(default_factory=list)
    too_wide: list[str] = field(default_factory=list)

    def judge(
        self,
        name: str,
        constraint: Constraint,
        yes: Iterable[str],
        no: Iterable[str],
        masks: bool,
    ) -> None:
        try:
            grammar = build_grammar(make_plan(constraint, "auto", ""), BYTES)
            wide = [text for text in no if accepts(grammar, text, masks)]
            narrow = [text for text in yes if not accepts(grammar, text, masks)]
        except GrammarError as error:
            self.refused.append(f"{name}: {error}")
            return
        if wide:
            self.too_wide.append(f"{name} takes {wide[0]!r}")
        elif narrow:
            self.too_narrow.append(f"{name} refuses {narrow[0]!r}")
        else:
            self.right.append(name)

    @property
    def share(self) -> float:
        rest = (self.refused, self.too_narrow, self.too_wide)
        return len(self.right) / (len(self.right) + sum(map(len, rest)))


@pytest.mark.slow
def test_regexes_are_read_as_re_reads_them() -> None:
    found = Verdicts()
    for row in some(regexes(), 150):
        name = f"{row.pattern!r} ({row.source})"
        found.judge(name, Constraint("regex", row.pattern), row.matches, row.misses, masks=True)
    assert not found.too_wide
    assert not found.too_narrow
    assert found.share >= 0.98, "\n".join(found.refused)


@pytest.mark.slow
def test_schemas_are_enforced_or_refused() -> None:
    found = Verdicts()
    for row in some(schemas(), 200):
        constraint = Constraint("json_schema", row.schema)
        found.judge(f"{row.name} ({row.source})", constraint, row.valid, row.invalid, masks=False)
    assert not found.too_wide
    assert found.share >= 0.86, "\n".join(found.too_narrow + found.refused)


def test_the_regexes_are_labelled_by_re() -> None:
    assert len(regexes()) == 300
    for row in regexes():
        compiled = re.compile(row.pattern)
        assert row.matches, row.pattern
        assert row.misses, row.pattern
        for text in row.matches:
            assert compiled.fullmatch(text), (row.pattern, text)
        for text in row.misses:
            assert not compiled.fullmatch(text), (row.pattern, text)


@pytest.mark.slow
def test_the_schemas_are_labelled_by_jsonschema() -> None:
    assert len(schemas()) >= 300
    for row in some(schemas(), 100):
        schema = json.loads(row.schema)
        validator = validator_for(schema, default=Draft202012Validator)(schema)
        assert len(row.valid) >= 2
        assert len(row.invalid) >= 2
        for text in row.valid:
            assert validator.is_valid(json.loads(text)), (row.name, text)
        for text in row.invalid:
            assert not validator.is_valid(json.loads(text)), (row.name, text)


@pytest.mark.parametrize("rows", [regexes, schemas])
def test_sources_and_licences_are_named(rows: Callable[[], Sequence[object]]) -> None:
    free = {"MIT", "MIT-0", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause"}
    free.add("Apache-2.0 or BSD-2-Clause")
    for row in rows():
        assert getattr(row, "licence") in free  # noqa: B009
        assert getattr(row, "source")  # noqa: B009


def test_the_suite_is_whole() -> None:
    cases = suite()
    assert len(cases) == 1257
    assert 600 < sum(case.valid for case in cases) < 800
    assert (DATA / "json-schema-test-suite" / "LICENSE").read_text().startswith("Copyright")
