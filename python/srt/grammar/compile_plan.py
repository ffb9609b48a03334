"""CompilePlan: the vocabulary-independent part of a compiled constraint.

A constraint may be slow or large to compile, so ``make_plan`` runs in a process that may be killed
(``compile_worker``). ``build_grammar`` then makes the grammar in a thread beside the engine loop.

    constraint                     implementation
    choices                        a trie, with every backend
    regex                          our automaton ("auto", "fsm", "interegular"); a trie for a small
                                   language; llguidance if "auto" exceeds the automaton's budget
                                   and the pattern means the same in llguidance
    json_schema                    llguidance; outlines-core for "outlines"
    ebnf, structural_tag           llguidance
"""

from __future__ import annotations

import msgspec
from sglang.ir.constraint import Constraint
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.character_dfa import CharacterDfa
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, GrammarError

LONGEST = 400  # limit of the characters of an error


class CompilePlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The plan that the compile process returns.

    Attributes:
        path: "fsm" (``data`` is a packed CharacterDfa), "trie" (``strings`` is the whole language),
            "llguidance" (``text`` is a grammar that llguidance has accepted) or "outlines"
            (``text`` is a pattern).
        schema: True if the rules of ``text`` come from a schema and not from the request's grammar.
        error: the reason why the constraint cannot be enforced; nothing else is set then.
    """

    path: str = ""
    data: bytes = b""
    strings: tuple[str, ...] = ()
    text: str = ""
    schema: bool = False
    error: str = ""


def make_plan(constraint: Constraint, backend: str, whitespace: str) -> CompilePlan:
    """Return the plan of a constraint, with ``error`` set after a failure. Raises nothing.

    Args:
        backend: one of ``config.sections.GRAMMAR_BACKENDS``.
        whitespace: pattern allowed between two tokens of JSON; "" for none.
    """
    try:
        constraint.verify()
        return _plan(constraint, backend, whitespace)
    except MemoryError:
        error = f"{constraint.kind} takes too much memory to compile; simplify it."
    except RecursionError:
        error = f"{constraint.kind} is nested too deeply; flatten it."
    except ValueError as failure:  # GrammarError among them
        error = str(failure) or repr(failure)
    except Exception as failure:
        error = f"{constraint.kind} cannot be compiled: {type(failure).__name__}: {failure}"
    if len(error) > LONGEST:  # keep the problem at the beginning and the fix at the end
        error = f"{error[: LONGEST // 2]} ... {error[-LONGEST // 2 :]}"
    return CompilePlan(error=error)


def warm() -> None:
    """Load the libraries, so that the first constraint need not wait for them."""
    make_plan(Constraint("regex", r"(?i)\w+[a-z]*\d?"), "auto", "")
    make_plan(Constraint("json_schema", '{"type":"object"}'), "auto", "")


def _plan(constraint: Constraint, backend: str, whitespace: str) -> CompilePlan:
    kind, text = constraint.kind, constraint.text
    if kind == "choices":
        return CompilePlan(path="trie", strings=tuple(constraint.choices()))
    if kind == "regex":
        return _regex(text, backend)
    if kind == "json_schema" and backend == "outlines":
        from sglang.srt.grammar.outlines import pattern_of

        return CompilePlan(path="outlines", text=pattern_of(constraint, whitespace))
    from sglang.srt.grammar.guidance import check, grammar_of
    from sglang.srt.grammar.guidance.work_limits import RULES, SCHEMA

    try:
        grammar = grammar_of(constraint, "" if kind == "ebnf" else whitespace)
        check(grammar, RULES if kind == "ebnf" else SCHEMA)
        if kind == "ebnf":  # schemas are bounded keyword by keyword
            from sglang.srt.grammar.guidance.trial_text import probe

            probe(grammar)
    except GrammarError as error:
        how = ", read as Lark since it has no '::='" if kind == "ebnf" and "::=" not in text else ""
        if how or str(error).startswith("grammar: "):
            message = str(error).removeprefix("grammar: ").removeprefix("ebnf")
            raise GrammarError(f"{kind}{how}: {message.lstrip(': ')}") from None
        raise
    return CompilePlan(path="llguidance", text=grammar, schema=kind != "ebnf")


def _regex(pattern: str, backend: str) -> CompilePlan:
    if backend == "outlines":
        from sglang.srt.grammar.outlines import pattern_of

        return CompilePlan(path="outlines", text=pattern_of(Constraint("regex", pattern), ""))
    if backend == "llguidance":
        return _guided(pattern, None)
    from sglang.srt.grammar.regex import BeyondBudget, compile_regex

    try:
        if backend == "interegular":
            automaton = compile_regex(pattern, front="interegular")
        else:
            automaton = compile_regex(pattern)
    except BeyondBudget as error:
        if backend != "auto":
            raise
        return _guided(pattern, error)
    if automaton.strings is not None:
        return CompilePlan(path="trie", strings=automaton.strings)
    return CompilePlan(path="fsm", data=automaton.pack())


def _guided(pattern: str, reason: GrammarError | None) -> CompilePlan:
    """Return a plan for llguidance, with the pattern rewritten so that llguidance reads it as
    ``re`` does. If that is not possible, raise ``reason``, or the error itself if it is None."""
    from sglang.srt.grammar.guidance import check, grammar_of
    from sglang.srt.grammar.guidance.trial_text import probe
    from sglang.srt.grammar.regex.unparse import portable

    try:
        grammar = grammar_of(Constraint("regex", portable(pattern)), "")
        check(grammar)
        probe(grammar)
    except GrammarError as error:
        raise reason or error from None
    return CompilePlan(path="llguidance", text=grammar)


def build_grammar(
    plan: CompilePlan, vocabulary: Vocabulary, canonical: bool = True
) -> CompiledGrammar:
    """Build the grammar of a plan, and its first mask, so that no forward pass waits for that.

    Args:
        canonical: masks allow only tokens of the canonical tokenisation of a legal text, if the
            implementation supports it.

    Raises GrammarError for a plan with an error, and if no token may begin a text.
    """
    if plan.error:
        raise GrammarError(plan.error)
    grammar = _grammar(plan, vocabulary, canonical)
    if not any(grammar.matcher().mask()):
        raise GrammarError("no text satisfies the constraint: no token may begin it.")
    return grammar


def warm_vocabulary(vocabulary: Vocabulary) -> None:
    """Make the tables that all grammars of a vocabulary share."""
    from sglang.srt.grammar.fsm import TokenTable
    from sglang.srt.grammar.guidance.guidance_tokenizer import TOKENIZERS

    TokenTable.of(vocabulary)
    TOKENIZERS.get(vocabulary)


def _grammar(plan: CompilePlan, vocabulary: Vocabulary, canonical: bool) -> CompiledGrammar:
    if plan.path == "fsm":
        from sglang.srt.grammar.fsm import FsmGrammar

        return FsmGrammar(CharacterDfa.unpack(plan.data), vocabulary, canonical)
    if plan.path == "trie":
        from sglang.srt.grammar.fsm import ChoicesGrammar

        return ChoicesGrammar(plan.strings, vocabulary, canonical)
    if plan.path == "llguidance":
        from sglang.srt.grammar.guidance import GuidanceGrammar
        from sglang.srt.grammar.guidance.work_limits import RULES, SCHEMA

        step = SCHEMA if plan.schema else RULES
        return GuidanceGrammar(plan.text, vocabulary, canonical, step)
    if plan.path == "outlines":
        from sglang.srt.grammar.outlines import OutlinesGrammar

        return OutlinesGrammar(plan.text, vocabulary)
    raise GrammarError(f"a plan has no path {plan.path!r}.")
