"""llguidance behind the interface of grammars: masks, runs, forks, end tokens, limits."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers.json_acceptor import BYTES, END, accepts_text
from helpers.vocabularies import embedded, toy
from sglang.ir.constraint import Constraint
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance import GuidanceGrammar, check, grammar_of
from sglang.srt.grammar.guidance import guidance_grammar as matcher_module
from sglang.srt.grammar.guidance.guidance_grammar import GuidanceMatcher
from sglang.srt.grammar.guidance.guidance_tokenizer import TOKENIZERS, TokenSource

WALKS = int(os.environ.get("GRAMMAR_CASES", "150"))
PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["ann", "anna", "bob"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": grammar_of(Constraint("json_schema", json.dumps(PERSON)), ""),
    "words": 'start: ("ab" | "ba")* "01" /[ab€é]{0,3}/',
    "nested": 'start: "a" start "b" | "01"',
    "letters": "start: /[ab]{2,6}|é+€?|(🙂|日){1,2}/",
    "forced": 'start: "ab 日€ab" /[01]+/ "é,b"',
}


@pytest.fixture(scope="module")
def vocabularies() -> dict[str, Vocabulary]:
    return {"toy": mixed(), "embedded": embedded()}


def mixed() -> Vocabulary:
    """The toy tokens, and every byte: any text can be written."""
    known = toy()
    tokens = (*known.tokens, *BYTES.tokens[:256])
    ids = {data: token for token, data in reversed(list(enumerate(tokens)))
           if data and token not in known.special}  # fmt: skip

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [greedy(text.encode()) for text in texts]

    def greedy(data: bytes) -> list[int]:
        found, at = [], 0
        while at < len(data):
            end = next(end for end in range(len(data), at, -1) if data[at:end] in ids)
            found.append(ids[data[at:end]])
            at = end
        return found

    return Vocabulary(tokens, len(tokens) + 3, known.eos, known.special, encode)


def ids(mask: bytes) -> list[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return [int(one) for one in np.flatnonzero(bits)]


def walked(grammar: GuidanceGrammar, tokens: Sequence[int]) -> GuidanceMatcher:
    matcher = grammar.matcher()
    for token in tokens:
        assert matcher.advance(token)
    return matcher


@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("vocabulary", ["toy", "embedded"])
def test_masks_are_what_may_be_taken(
    vocabularies: dict[str, Vocabulary], vocabulary: str, name: str, canonical: bool
) -> None:
    """Brute force: every token is tried on a fork. A canonical mask may leave tokens out."""
    known = vocabularies[vocabulary]
    grammar = GuidanceGrammar(GRAMMARS[name], known, canonical)
    dice = random.Random(f"{name} {vocabulary}")
    for _ in range(2):
        matcher = grammar.matcher()
        for _ in range(6):
            mask = matcher.mask()
            assert len(mask) == 4 * known.words
            found = ids(mask)
            sample = (
                range(known.size) if vocabulary == "toy" else dice.sample(range(known.size), 60)
            )
            for token in {*sample, *found[:40]}:
                if token in known.eos:
                    assert not matcher.advance(token)
                    continue
                may = matcher.fork().advance(token)
                if canonical and not may:
                    assert token not in found
                elif not canonical:
                    assert may == (token in found), (token, known.tokens[token : token + 1])
            ends = [token for token in found if token in known.eos]
            assert ends == (sorted(known.eos) if matcher.accepting else [])
            going = [token for token in found if token not in known.eos]
            assert matcher.finished == (not going)
            if not going:
                break
            assert matcher.advance(dice.choice(going))


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("vocabulary", ["toy", "embedded"])
def test_a_mask_depends_on_the_tokens_alone(
    vocabularies: dict[str, Vocabulary], vocabulary: str, name: str
) -> None:
    """A fresh matcher that took the same tokens agrees, whatever other methods were called
    before."""
    known = vocabularies[vocabulary]
    grammar = GuidanceGrammar(GRAMMARS[name], known)
    dice = random.Random(f"alone {name} {vocabulary}")
    for _ in range(WALKS):
        matcher = grammar.matcher()
        taken: list[int] = []
        for _ in range(dice.randint(1, 12)):
            act = dice.randrange(7)
            if act == 0:
                matcher.forced(dice.randint(1, 9))
            elif act == 1:
                matcher.draft(dice.randint(1, 9))
            elif act == 2 and taken:
                back = dice.randint(0, len(taken))
                matcher.rollback(back)
                taken = taken[: len(taken) - back]
            elif act == 3:
                other, matcher = matcher, matcher.fork()
                other.advance(dice.randrange(known.size))
            elif act == 4:
                run = matcher.forced(dice.randint(1, 4))
                assert all(matcher.advance(token) for token in run)
                taken += run
            elif act == 5:  # most likely refused, and then nothing changes
                token = dice.randrange(known.size)
                taken += [token] if matcher.advance(token) else []
            else:
                going = [token for token in ids(matcher.mask()) if token not in known.eos]
                if going:
                    taken.append(dice.choice(going))
                    assert matcher.advance(taken[-1])
        fresh = walked(grammar, taken)
        assert matcher.mask() == fresh.mask()
        assert matcher.forced(20) == fresh.forced(20)
        assert matcher.draft(20) == fresh.draft(20)
        assert (matcher.accepting, matcher.finished) == (fresh.accepting, fresh.finished)


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("vocabulary", ["toy", "embedded"])
def test_forced_tokens_are_the_only_ones_and_drafts_are_allowed(
    vocabularies: dict[str, Vocabulary], vocabulary: str, name: str
) -> None:
    known = vocabularies[vocabulary]
    grammar = GuidanceGrammar(GRAMMARS[name], known)
    dice = random.Random(f"forced {name} {vocabulary}")
    forced = drafted = 0
    for _ in range(WALKS):
        matcher = grammar.matcher()
        for _ in range(8):
            run, draft = matcher.forced(16), matcher.draft(16)
            assert draft[: len(run)] == run
            assert matcher.forced(2) == run[:2]
            assert matcher.draft(3) == draft[:3]
            ahead = matcher.fork()
            for at, token in enumerate(draft):
                mask = ids(ahead.mask())
                assert token in mask
                assert at >= len(run) or mask == [token]
                assert ahead.advance(token)
            forced, drafted = forced + len(run), drafted + len(draft)
            going = [token for token in ids(matcher.mask()) if token not in known.eos]
            if not going:
                break
            assert matcher.advance(dice.choice(going))
    if name == "forced":
        assert forced
    assert drafted >= forced


def test_a_forced_run_is_the_canonical_tokenisation(vocabularies: dict[str, Vocabulary]) -> None:
    known = vocabularies["embedded"]
    text = '{"name":"'
    grammar = GuidanceGrammar(GRAMMARS["schema"], known)
    run = grammar.matcher().forced(9)
    assert b"".join(known.tokens[token] for token in run) == text.encode()
    assert run == known.encode([text])[0]
    plain = GuidanceGrammar(GRAMMARS["schema"], known, canonical=False).matcher()
    assert plain.forced(9) == []
    assert plain.draft(9)[: len(run)] == run
    assert len(ids(plain.mask())) > 1


def test_a_token_that_a_canonical_mask_leaves_out_may_be_taken(
    vocabularies: dict[str, Vocabulary],
) -> None:
    known = vocabularies["embedded"]
    matcher = GuidanceGrammar(GRAMMARS["schema"], known).matcher()
    brace = list(known.tokens).index(b"{")
    assert brace not in ids(matcher.mask())
    assert matcher.advance(brace)
    matcher.rollback(1)
    assert len(ids(matcher.mask())) == 1


PARTS = ["file", "name", "size", "content", "path", "user", "id", "is_", "get", "set", "data", "un",
         "base", "time", "stamp", "on", "off", "ing", "re", "able", "tion", "-", ".", "/", " ", "A",
         "X1", "2", "10", "é", "日本"]  # fmt: skip


def some_words(dice: random.Random) -> list[str]:
    """Words that begin alike."""
    begin = "".join(dice.choices(PARTS, k=dice.choice([0, 1, 1, 2])))
    ends = ("".join(dice.choices(PARTS, k=dice.choice([1, 1, 2]))) for _ in range(4))
    return sorted({begin + end for end in ends})


def left_out(grammar: GuidanceGrammar, text: str) -> str:
    """The first token of the canonical tokenisation that a mask leaves out; "" where none is."""
    matcher, known = grammar.matcher(), grammar.vocabulary
    for token in known.encode([text])[0]:
        if token not in ids(matcher.mask()):
            return f"{known.tokens[token]!r} of {text}"
        assert matcher.advance(token)
    assert matcher.accepting
    return ""


def of_schema(schema: dict[str, Any], known: Vocabulary) -> GuidanceGrammar:
    return GuidanceGrammar(grammar_of(Constraint("json_schema", json.dumps(schema)), ""), known)


@pytest.mark.slow
def test_words_that_begin_alike_keep_every_canonical_token(
    vocabularies: dict[str, Vocabulary],
) -> None:
    """Brute force: every prefix of the canonical tokenisation of a legal text."""
    known = vocabularies["embedded"]
    three = {"type": "array", "items": {"enum": ["filecontent", "filename", "filesize"]}}
    assert left_out(of_schema(three, known), '["filesize"]') == ""
    for n in range(WALKS):
        dice = random.Random(f"alike {n}")
        words, values = some_words(dice), some_words(dice)
        listed = of_schema({"type": "array", "items": {"enum": words}}, known)
        properties = {name: {"enum": values} for name in words}
        named = of_schema({"type": "object", "properties": properties,
                           "additionalProperties": False}, known)  # fmt: skip
        for word in words:
            assert left_out(listed, compact([word, dice.choice(words)])) == ""
            some = [name for name in words if name == word or dice.random() < 0.7]
            assert left_out(named, compact({name: dice.choice(values) for name in some})) == ""


def test_long_forced_text_is_not_tokenized_for_each_that_follows(
    vocabularies: dict[str, Vocabulary],
) -> None:
    known = vocabularies["embedded"]
    sizes: list[int] = []

    def counted(texts: Sequence[str]) -> list[list[int]]:
        sizes.extend(len(text) for text in texts)
        return known.encode(texts)

    long = "a long name of a file " * 200 + "file"
    watched = Vocabulary(known.tokens, known.size, known.eos, known.special, counted)
    listed = of_schema({"enum": [long + end for end in ("content", "name", "size")]}, watched)
    sizes.clear()
    assert left_out(listed, compact(long + "size")) == ""
    assert sum(size > 700 for size in sizes) < 8  # llguidance, and the text of this test
    assert 0 < sum(size <= 700 for size in sizes) < 300


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_the_mask_of_forced_text_with_several_tokenisations(
    vocabularies: dict[str, Vocabulary],
) -> None:
    """The mask has all tokens that may be taken if no single token is certain."""
    known = vocabularies["embedded"]
    three = {"type": "array", "items": {"enum": ["filecontent", "filename", "filesize"]}}
    matcher = walked(of_schema(three, known), known.encode(['["f'])[0])
    found = ids(matcher.mask())
    assert {known.tokens[token] for token in found} >= {b"i", b"il"}
    assert matcher.forced(4) == []
    assert found == [n for n in range(known.size) if matcher.fork().advance(n)]
    assert matcher.draft(8)[0] in found


def test_every_end_token_is_allowed_where_the_text_may_end() -> None:
    known = Vocabulary((*BYTES.tokens[:256], b"<a>", b"<b>", b"<c>"), 300, (258, 256),
                       frozenset({256, 257, 258}), BYTES.encode)  # fmt: skip
    matcher = GuidanceGrammar('start: "x" "y"?', known).matcher()
    assert ids(matcher.mask()) == [ord("x")]
    assert not matcher.accepting
    assert matcher.advance(ord("x"))
    assert ids(matcher.mask()) == [ord("y"), 256, 258]
    assert matcher.accepting
    assert not matcher.finished
    assert matcher.advance(ord("y"))
    assert ids(matcher.mask()) == [256, 258]
    assert matcher.finished
    assert not any(matcher.advance(token) for token in (256, 258, 257, 300, -1, ord("y")))
    matcher.rollback(2)
    assert ids(matcher.mask()) == [ord("x")]


def test_control_tokens_stand_only_where_the_grammar_names_them() -> None:
    known = Vocabulary((*BYTES.tokens[:256], b"<end>", b"<tool>"), 258, (256,),
                       frozenset({256, 257}), BYTES.encode)  # fmt: skip
    free = GuidanceGrammar("start: /(?s:.*)/", known).matcher()
    assert {256} == {token for token in ids(free.mask()) if token > 255}
    assert not free.advance(257)
    named = GuidanceGrammar('start: "a" <tool> "b"', known).matcher()
    assert all(named.advance(token) for token in (ord("a"), 257, ord("b")))
    assert named.finished
    text = GuidanceGrammar('start: "<tool>"', known).matcher()
    assert ids(text.mask()) == [ord("<")]
    with pytest.raises(GrammarError, match="nope"):
        GuidanceGrammar("start: <nope>", known)
    ended = GuidanceGrammar('start: "a" <[256]> "b"', known).matcher()
    assert ended.advance(ord("a"))
    assert ids(ended.mask()) == []  # an end token ends: it is never a part of the text


def test_a_dead_end_is_an_empty_mask_and_can_be_left_again() -> None:
    grammar = GuidanceGrammar('start: "a" NEVER | "b"\nNEVER: /[0-9]/ & /[a-z]/', BYTES)
    matcher = grammar.matcher()
    if matcher.advance(ord("a")):
        assert not any(matcher.mask())
        assert not matcher.finished
        assert not matcher.accepting
        assert not any(matcher.mask())
        matcher.rollback(1)
    assert matcher.advance(ord("b"))
    assert matcher.finished


def test_a_limit_of_the_step_is_an_error_and_the_matcher_lives(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = 'start: "x" b\nb: /([ab]{1,30}c?){1,30}/ | /([ab]{1,29}d?){1,31}/'
    monkeypatch.setattr("sglang.srt.grammar.guidance.work_limits.STEP_FUEL", 50)
    matcher = GuidanceGrammar(text, BYTES).matcher()
    first = matcher.mask()
    taken = []

    def go_on() -> None:
        for char in "x" + 300 * "a":
            matcher.mask()
            assert matcher.advance(ord(char))
            taken.append(char)

    with pytest.raises(GrammarError, match="units of lexer work"):
        go_on()
    matcher.rollback(len(taken))
    assert matcher.mask() == first
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_library_is_not_the_end(vocabularies: dict[str, Vocabulary]) -> None:
    """The matcher is made again from its tokens: as when the shared lexer is full."""
    grammar = GuidanceGrammar(GRAMMARS["schema"], vocabularies["toy"])
    matcher, other = grammar.matcher(), grammar.matcher()
    taken = matcher.forced(3)
    assert all(matcher.advance(token) for token in taken)
    expected = matcher.mask()
    matcher._inner.consume_token(vocabularies["toy"].size + 7)
    assert matcher._inner.is_error()
    matcher.rollback(0)
    matcher._runs[-1] = None
    assert matcher_module.NO_RUN == ([], 0)
    assert matcher.mask() == expected
    matcher.rollback(len(taken))
    assert matcher.mask() == other.mask()


class Odd:
    """An encoder with a fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        if self.fault == "raises":
            raise RuntimeError("no")
        if self.fault == "normalises":
            return [list(text.upper().encode()) for text in texts]
        return [[10_000] for _ in texts]


@pytest.mark.parametrize("fault", ["raises", "normalises", "out of range"])
def test_an_encoder_that_does_not_write_the_text_is_not_followed(
    fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    known = Vocabulary((*BYTES.tokens, b"ab", b"abc"), 260, (END,), frozenset({END}), Odd(fault))
    assert TokenSource(known)("abcd") == [258, ord("d")]
    matcher = GuidanceGrammar('start: "abcd" /[0-9]/', known).matcher()
    assert matcher.forced(4) == [258, ord("d")]
    assert capfd.readouterr() == ("", "")


def test_a_text_that_no_token_writes_is_a_dead_end() -> None:
    known = Vocabulary(
        (b"a", b"b", b"<end>"), 3, (2,), frozenset({2}), lambda texts: [[] for _ in texts]
    )
    matcher = GuidanceGrammar('start: "a" "z"', known).matcher()
    assert not any(matcher.mask()) or matcher.advance(0)
    assert not any(matcher.mask())


def test_a_vocabulary_has_one_tokenizer() -> None:
    one = toy()
    assert TOKENIZERS.get(one) is TOKENIZERS.get(one)
    assert TOKENIZERS.get(one) is not TOKENIZERS.get(toy())


def test_rollback_of_more_than_was_taken() -> None:
    matcher = GuidanceGrammar('start: "ab"', BYTES).matcher()
    assert matcher.advance(ord("a"))
    with pytest.raises(ValueError, match="rollback of 2 tokens; 1 were taken"):
        matcher.rollback(2)


MALFORMED = [
    ("start: foo", "foo"),
    ("", "Empty grammar"),
    ("start: /(/", "regex"),
    ('start: "a"{2,1}', "range"),
    ('start: "a', "1"),
    ("start: /(?=a)b/", "look-around"),
    ("x: y", "start"),
]


@pytest.mark.parametrize(("text", "message"), MALFORMED)
def test_a_malformed_grammar_is_a_short_message(
    text: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        check(text)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)
    with pytest.raises(GrammarError):
        GuidanceGrammar(text, BYTES)
    assert capfd.readouterr() == ("", "")


def test_a_regex_is_matched_whole() -> None:
    grammar = GuidanceGrammar(grammar_of(Constraint("regex", r'[a-z/"\\]+@[0-9]{2}'), ""), BYTES)
    assert accepts_text(grammar.matcher(), 'a/"\\b@12')
    assert not accepts_text(grammar.matcher(), "a@1")
    assert not accepts_text(grammar.matcher(), "x a@12")


# -- panics of llguidance ------------------------------------------------------------------------

# llguidance panics when it computes forced tokens behind "aaa", "aaaaa" and so on. The lexer, which
# all matchers of the grammar share, is broken then.
PANICS = r"""start: ("a" "ab"? "a" | "b") tag* FREE
FREE: /(?s:.*)/ & ~(/(?s:.*)/ ("a" | "b") /(?s:.*)/)
until_a[lazy]: (FREE "a")
until_b[lazy]: (FREE "b")
tag: (until_a "ab"? "a" | until_b PATTERN ("a" | "b"))
PATTERN: /c?/"""


class Counted(GuidanceGrammar):
    """``compiled``: how often."""

    compiled = 0

    def _compile(self) -> Any:
        self.compiled += 1
        return super()._compile()


def panicking() -> Counted:
    return Counted(PANICS, BYTES)


def after(grammar: GuidanceGrammar, text: bytes) -> GuidanceMatcher:
    matcher = grammar.matcher()
    assert all(matcher.advance(token) for token in text)
    return matcher


def test_a_state_panics_once_whoever_visits_it() -> None:
    """The states behind "aaa" (forced tokens and mask) and "aaaaa" panic."""
    grammar = panicking()
    matcher = after(grammar, b"aa")
    mask = matcher.mask()
    for _ in range(3):
        matcher.draft(8)
        fork = matcher.fork()
        assert all(fork.advance(token) for token in b"aaaab")
        assert all(matcher.advance(token) for token in b"a")
        with pytest.raises(GrammarError, match="panic"):
            matcher.mask()
        matcher.rollback(1)
        assert matcher.mask() == mask
    assert grammar.compiled == 1 + 3


def test_a_panic_breaks_no_other_matcher() -> None:
    grammar = panicking()
    others = [after(grammar, text) for text in (b"", b"a", b"aab")]
    assert after(grammar, b"aaa").forced(8) == []
    for other, text in zip(others, (b"", b"a", b"aab")):
        plain = after(panicking(), text)
        assert (other.accepting, other.finished) == (plain.accepting, plain.finished)
        assert other.mask() == plain.mask()
        assert other.fork().mask() == plain.mask()
    assert grammar.matcher().mask() == panicking().matcher().mask()
    assert grammar.compiled == 2


def test_drafts_do_not_decide_when_panics_end_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text ends behind the states of its own that panic, not behind those that a guess visits."""
    monkeypatch.setattr("sglang.srt.grammar.guidance.guidance_grammar.MOST_PANICS", 2)
    monkeypatch.setattr("sglang.srt.grammar.guidance.guidance_grammar.KNOWN_PANICS", 1)
    matcher = after(panicking(), b"aa")
    for _ in range(3):
        for one in (matcher.fork(), matcher):
            assert all(one.advance(token) for token in b"aab"), "the state between panics"
        matcher.rollback(3)
    over = after(panicking(), b"aaaaaaa")
    with pytest.raises(GrammarError, match="panic"):
        over.forced(8)
    again = over.fork()
    over.rollback(1)
    assert over.forced(8) == []
    with pytest.raises(GrammarError, match="panic"):
        again.advance(ord("a"))


def test_a_panic_at_a_mask_ends_the_request_at_once() -> None:
    class Panics:
        calls = 0

        def is_accepting(self) -> bool:
            return False

        def compute_bitmask(self) -> bytes:
            self.calls += 1
            return b""

        def is_error(self) -> bool:
            return self.calls > 0

        def get_error(self) -> str:
            return "panic: index out of range"

    grammar = panicking()
    grammar.canonical = False
    matcher, other = grammar.matcher(), grammar.matcher()
    matcher._copy = inner = Panics()
    for _ in range(2):
        with pytest.raises(GrammarError, match="index out of range"):
            matcher.mask()
    assert inner.calls == 1
    assert grammar.compiled == 1
    other.mask()
    assert grammar.compiled == 2, "the lexer that they shared is broken"
