"""Contenders: one interface over our grammars and those of other projects.

A contender is made once with a vocabulary; ``compile`` gives a function that makes walkers. A
contender refuses a constraint that it does not support with an exception of any kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np


class Walker(Protocol):
    """State of one text."""

    def mask(self) -> None: ...

    def advance(self, token: int) -> bool: ...

    def ended(self) -> bool:
        """Whether the text may end here."""
        ...


class Tokens:
    """Facts that every contender needs: token bytes by id, the number of logits, the end token."""

    def __init__(self, path: str) -> None:
        source = json.loads(Path(path).read_text())
        self.name: str = source["name"]
        self.size: int = source["size"]
        self.eos: int = source["eos"]
        self.special: list[int] = source["special"]
        self.tokens = [bytes.fromhex(token) for token in source["tokens"]]
        self.tokens += [b""] * (self.size - len(self.tokens))

    @staticmethod
    def write(path: Path, name: str, vocabulary: Any) -> None:
        """Write the vocabulary for the processes of the contenders."""
        source = {
            "name": name, "size": vocabulary.size, "eos": vocabulary.eos[0],
            "special": sorted(vocabulary.special),
            "tokens": [token.hex() for token in vocabulary.tokens],
        }  # fmt: skip
        path.write_text(json.dumps(source))


def unanchored(pattern: str) -> str:
    """Return the pattern without ``^`` at the start and ``$`` at the end, for contenders that match
    the whole text and know no anchors."""
    pattern = pattern[1:] if pattern.startswith("^") else pattern
    return re.sub(r"(?<!\\)((?:\\\\)*)\$\Z", r"\1", pattern)


class Ours:
    def __init__(self, tokens: Tokens) -> None:
        from sglang.srt.grammar.compile_plan import warm as warm_planning
        from sglang.srt.grammar.compile_plan import warm_vocabulary

        from benchmark.grammars.vocabulary import vocabulary

        self._vocabulary = vocabulary(tokens.name)
        warm_vocabulary(self._vocabulary)
        warm_planning()

    def compile(self, kind: str, text: str) -> Callable[[], Walker]:
        from sglang.ir.constraint import Constraint
        from sglang.srt.grammar.compile_plan import build_grammar, make_plan

        plan = make_plan(Constraint(kind, text), "auto", "")
        grammar = build_grammar(plan, self._vocabulary)
        return lambda: _Ours(grammar.matcher())


class _Ours:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self) -> None:
        self._matcher.mask()

    def advance(self, token: int) -> bool:
        return bool(self._matcher.advance(token))

    def ended(self) -> bool:
        return bool(self._matcher.accepting)

    def forced(self) -> list[int]:
        found: list[int] = self._matcher.forced(1)
        return found


class Guidance:
    """llguidance by itself."""

    def __init__(self, tokens: Tokens) -> None:
        import llguidance
        import llguidance.numpy

        from benchmark.grammars.vocabulary import vocabulary

        known = vocabulary(tokens.name)

        class Source:
            eos_token_id = tokens.eos
            bos_token_id = None
            special_token_ids = tokens.special
            is_tokenizer_wrapper = True

            def __init__(self) -> None:
                self.tokens = tokens.tokens

            def __call__(self, text: str) -> list[int]:
                return list(known.encode([text])[0])

        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Source()))
        self._library = llguidance
        self._fill = llguidance.numpy.fill_next_token_bitmask
        self._row = np.zeros((1, (tokens.size + 31) // 32), np.int32)

    def compile(self, kind: str, text: str) -> Callable[[], Walker]:
        library = self._library
        if kind == "regex":
            grammar = library.LLMatcher.grammar_from_regex(unanchored(text))
        elif kind == "json_schema":
            grammar = library.LLMatcher.grammar_from_json_schema(
                text, overrides={"whitespace_flexible": False}
            )
        elif kind == "choices":
            grammar = "start: " + " | ".join(map(json.dumps, json.loads(text)))
        else:
            source = json.loads(text)
            tags = [
                library.StructTag(trigger=source["triggers"][0], begin=tag["begin"],
                                  grammar=tag["schema"], end=tag["end"])
                for tag in source["structures"]
            ]  # fmt: skip
            grammar = library.StructTag.to_grammar(tags)
        root = library.LLMatcher(self._tokenizer, grammar, log_level=0)
        if root.is_error():
            raise ValueError(root.get_error())
        return lambda: _Guidance(root.deep_copy(), self._fill, self._row)


class _Guidance:
    def __init__(self, matcher: Any, fill: Any, row: Any) -> None:
        self._matcher, self._fill, self._row = matcher, fill, row

    def mask(self) -> None:
        self._fill(self._matcher, self._row, 0)

    def advance(self, token: int) -> bool:
        return bool(self._matcher.try_consume_tokens([token]) == 1)

    def ended(self) -> bool:
        return bool(self._matcher.is_accepting())


class Xgrammar:
    def __init__(self, tokens: Tokens) -> None:
        import xgrammar

        self._library = xgrammar
        info = xgrammar.TokenizerInfo(
            tokens.tokens, xgrammar.VocabType.RAW, vocab_size=tokens.size, stop_token_ids=tokens.eos
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._row = xgrammar.allocate_token_bitmask(1, tokens.size)

    def compile(self, kind: str, text: str) -> Callable[[], Walker]:
        compiler, library = self._compiler, self._library
        if kind == "regex":
            made = compiler.compile_regex(unanchored(text))
        elif kind == "json_schema":
            made = compiler.compile_json_schema(
                text, any_whitespace=False, separators=(",", ":"), strict_mode=False
            )
        elif kind == "choices":
            made = compiler.compile_grammar(
                "root ::= " + " | ".join(map(json.dumps, json.loads(text)))
            )
        else:
            source = json.loads(text)
            tags = [
                library.StructuralTagItem(**{**tag, "schema": json.dumps(tag["schema"])})
                for tag in source["structures"]
            ]
            made = compiler.compile_structural_tag(tags, source["triggers"])
        return lambda: _Xgrammar(library.GrammarMatcher(made), self._row)


class _Xgrammar:
    def __init__(self, matcher: Any, row: Any) -> None:
        self._matcher, self._row = matcher, row

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._row)

    def advance(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def ended(self) -> bool:
        return bool(self._matcher.is_completed())


class Outlines:
    """outlines-core, whose schemas are regexes."""

    def __init__(self, tokens: Tokens) -> None:
        import outlines_core

        self._library = outlines_core
        by_bytes: dict[bytes, list[int]] = {}
        control = {tokens.eos, *tokens.special}
        for token, data in enumerate(tokens.tokens):
            if data and token not in control:
                by_bytes.setdefault(data, []).append(token)
        self._vocabulary = outlines_core.Vocabulary(tokens.eos, by_bytes)
        self._row = np.zeros((tokens.size + 31) // 32, np.int32)

    def compile(self, kind: str, text: str) -> Callable[[], Walker]:
        if kind == "regex":
            pattern = unanchored(text)
        elif kind == "json_schema":
            pattern = self._library.json_schema.build_regex_from_schema(text, r"")
        elif kind == "choices":
            pattern = "|".join(map(re.escape, json.loads(text)))
        else:
            raise ValueError("no structural tags")
        index = self._library.Index(pattern, self._vocabulary)
        return lambda: _Outlines(self._library.Guide(index, 1), self._row)


class _Outlines:
    def __init__(self, guide: Any, row: Any) -> None:
        self._guide, self._row = guide, row

    def mask(self) -> None:
        self._guide.write_mask_into(self._row.ctypes.data, self._row.size, 4)

    def advance(self, token: int) -> bool:
        try:
            self._guide.advance(token, False)
        except ValueError:
            return False
        return True

    def ended(self) -> bool:
        return bool(self._guide.is_finished())


CONTENDERS: dict[str, Callable[[Tokens], Any]] = {
    "sglang": Ours,
    "llguidance": Guidance,
    "xgrammar": Xgrammar,
    "outlines-core": Outlines,
}
PACKAGES = {"sglang": "sglang.srt", "outlines-core": "outlines_core"}


def accepts(make: Callable[[], Walker], tokens: Sequence[int]) -> bool:
    walker = make()
    return all(walker.advance(token) for token in tokens) and walker.ended()
