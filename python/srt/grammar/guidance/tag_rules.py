"""Rules in llguidance's Lark syntax for structural tags: literals, free text and what follows them.

A literal may contain the spelling of a control token, which the bytes of ordinary tokens do not
match. The control tokens are known only with the vocabulary, so ``for_vocabulary`` adds these
spellings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.schema.unmatched_terminal import unmatched

Heads = tuple[tuple[str, str], ...]

MOST_HEADS = 256  # literals that free text may be followed by
ANY = "/(?s:.*)/"
SHORT = 40  # characters up to which an expression is repeated rather than named
_MARKED = re.compile(r'(?m)^(\w+): (.*) //@(?:(\w+) )?("(?:[^"\\]|\\.)*")$')


@dataclass(frozen=True)
class Rest:
    """The continuation of a text after one of its parts.

    Attributes:
        text: Lark expression; "" for an empty continuation.
        heads: literals that the continuation may begin with, each with the expression of what
            follows the literal; None if it may begin with anything else. The literal "" stands for
            MORE.
        last: whether the continuation may be empty, so that the whole text may end before it.
    """

    text: str = ""
    heads: Heads | None = ()
    last: bool = True

    @property
    def empty(self) -> bool:
        """Return whether MORE may follow at once."""
        return any(not literal for literal, _ in self.heads or ())


END = Rest()
MORE = Rest("", (("", ""),), False)  # added later by ``before``, by the part before


def either(options: Iterable[str]) -> str:
    """Return an expression that matches any of the expressions."""
    texts = list(dict.fromkeys(text.strip() or '""' for text in options))
    return texts[0] if len(texts) == 1 else f"({' | '.join(texts)})"


def any_of(rests: Iterable[Rest]) -> Rest:
    """Return a continuation that is any of several."""
    rests = list(rests)
    if len(rests) == 1:
        return rests[0]
    heads: list[tuple[str, str]] | None = []
    for rest in rests:
        heads = None if heads is None or rest.heads is None else [*heads, *rest.heads]
    if heads is not None and len(heads) > MOST_HEADS:
        heads = None
    return Rest(
        either(rest.text for rest in rests),
        None if heads is None else tuple(heads),
        any(rest.last for rest in rests),
    )


def before(made: Rest, rest: Rest) -> Rest:
    """Return the part ``made``, which was written with MORE after it, with MORE replaced by
    ``rest``."""
    heads: list[tuple[str, str]] | None = None
    if made.heads is not None:
        heads = [(literal, f"{after} {rest.text}") for literal, after in made.heads if literal]
        if made.empty:
            heads = None if rest.heads is None else [*heads, *rest.heads]
    return Rest(
        f"{made.text} {rest.text}",
        None if heads is None else tuple(heads),
        made.empty and rest.last,
    )


def quoted(text: str) -> str:
    """Return ``text`` as a Lark string literal."""
    return json.dumps(text, ensure_ascii=False)


def _none_of(texts: Collection[str]) -> str:
    """Return the end of a terminal expression that excludes all texts with one of the strings in
    them."""
    held = " | ".join(quoted(text) for text in sorted(set(texts)))
    return f" & ~({ANY} ({held}) {ANY})" if held else ""


class TagRules:
    """The rules of one grammar. Equal rules are written once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._made: dict[tuple[str, ...], str] = {}

    def rule(self, body: str, kind: str) -> str:
        """Add a rule and return its name. ``kind`` in upper case makes it a terminal."""
        return self._once((kind, body), kind, lambda name: [f"{name}: {body}"])

    def shared(self, rest: Rest) -> Rest:
        """Return the continuation for repeated use: a long one gets a rule of its own."""
        text = self.rule(rest.text, "rest") if len(rest.text) > SHORT else rest.text
        return replace(rest, text=text)

    def literal(self, text: str) -> str:
        """Return an expression for the text; "" for an empty text."""
        return self.rule(f"{quoted(text)} //@{quoted(text)}", "literal") if text else ""

    def written(self, text: str, rest: Rest) -> Rest:
        """Return the continuation that is a literal and then ``rest``."""
        if not text:
            return rest
        return Rest(f"{self.literal(text)} {rest.text}", ((text, rest.text),), False)

    def free(self, without: Collection[str], most: int | None = None) -> str:
        """Return the terminal of all texts, of at most ``most`` characters, that contain none of
        the strings."""
        any_text = ANY if most is None else f"/(?s:.{{0,{most}}})/"
        return self.rule(f"{any_text}{_none_of(without)}", "FREE")

    def until(self, terminal: str, literal: str, without: Collection[str] = ()) -> str:
        """Return an expression for the terminal and the literal after it, up to the literal's first
        occurrence. Both together contain none of the strings of ``without``."""
        body = f"({terminal} {quoted(literal)}){_none_of(without)}"
        name = self._once(("until", body), "until", lambda name: [f"{name}[lazy]: {body}"])
        return self.rule(f"{name} //@{terminal} {quoted(literal)}", "head")

    def ended(self, terminal: str, rest: Rest) -> str:
        """Return an expression for the terminal up to the first head of ``rest``, and for what
        follows."""
        assert rest.heads is not None
        options = []
        for head, after in self.grouped(rest.heads).items():
            options.append(f"{self.until(terminal, head)} {either(after)}")
        return either([*options, *([terminal] if rest.last else [])])

    def runs_over(self, pattern: str, heads: Heads) -> bool:
        """Return whether a text that the pattern matches can contain one of the literals."""
        held = either(quoted(literal) for literal, _ in heads)
        return not unmatched(f"{pattern} & ({ANY} {held} {ANY})")

    def grouped(self, heads: Heads) -> dict[str, list[str]]:
        """Return the continuations by head, for each head that has no other head as its prefix."""
        found: dict[str, list[str]] = {}
        for literal, after in sorted(heads, key=lambda head: len(head[0])):
            short = next((one for one in found if literal.startswith(one)), literal)
            behind = f"{self.literal(literal[len(short) :])} {after}"
            found.setdefault(short, []).append(behind)
        return found

    def _once(self, key: tuple[str, ...], kind: str, lines: Callable[[str], list[str]]) -> str:
        name = self._made.get(key)
        if name is None:
            name = self._made[key] = f"{kind}_{len(self.lines)}"
            self.lines += lines(name)
        return name


def for_vocabulary(text: str, vocabulary: Vocabulary) -> str:
    """Return the grammar in which marked literals may also be spelled with control tokens."""
    if "//@" not in text:
        return text
    ids: dict[str, int] = {}
    for token in sorted(vocabulary.special):
        if token < len(vocabulary.tokens) and vocabulary.tokens[token]:
            ids.setdefault(vocabulary.tokens[token].decode("utf-8", "replace"), token)
    if not ids:
        return text
    split = re.compile("|".join(re.escape(name) for name in sorted(ids, key=len, reverse=True)))

    def spell(found: re.Match[str]) -> str:
        literal = json.loads(found[4])
        parts: list[str] = []
        at = 0
        for hit in split.finditer(literal):
            parts += [quoted(literal[at : hit.start()]), f"<[{ids[hit[0]]}]>"]
            at = hit.end()
        if not parts:
            return found[0]
        parts = [part for part in [*parts, quoted(literal[at:])] if part != '""']
        return f"{found[1]}: {found[2]} | {found[3] or ''} {' '.join(parts)}"

    return _MARKED.sub(spell, text)
