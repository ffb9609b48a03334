"""planning: which path carries a constraint. Runs in the child, but not only there.

choices                        a trie, whatever the backend
regex                          our automaton ("auto", "fsm", "interegular"), as a trie where the
                               language is small; "auto" gives what is beyond its budget to
                               llguidance where both read the pattern alike
json_schema                    llguidance; outlines-core for "outlines"
ebnf, structural_tag           llguidance
"""

from __future__ import annotations

from sglang.ir.constraint import Constraint
from sglang.srt.grammar.base import GrammarError
from sglang.srt.grammar.plan import Plan

LONGEST = 400  # characters of an error


def make_plan(constraint: Constraint, backend: str, whitespace: str) -> Plan:
    """The plan, or one with ``error`` set: nothing is raised.

    Args:
        backend: one of ``config.GRAMMAR_BACKENDS``.
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
    if len(error) > LONGEST:  # what is wrong stands in front, the fix at the end
        error = f"{error[: LONGEST // 2]} ... {error[-LONGEST // 2 :]}"
    return Plan(error=error)


def warm() -> None:
    """Load the libraries, so that the first constraint need not wait for them."""
    make_plan(Constraint("regex", r"(?i)\w+[a-z]*\d?"), "auto", "")
    make_plan(Constraint("json_schema", '{"type":"object"}'), "auto", "")


def _plan(constraint: Constraint, backend: str, whitespace: str) -> Plan:
    kind, text = constraint.kind, constraint.text
    if kind == "choices":
        return Plan(path="trie", strings=tuple(constraint.choices()))
    if kind == "regex":
        return _regex(text, backend)
    if kind == "json_schema" and backend == "outlines":
        from sglang.srt.grammar.outlines import pattern_of

        return Plan(path="outlines", text=pattern_of(constraint, whitespace))
    from sglang.srt.grammar.guidance import check, grammar_of
    from sglang.srt.grammar.guidance.checking import RULES, SCHEMA

    try:
        grammar = grammar_of(constraint, "" if kind == "ebnf" else whitespace)
        check(grammar, RULES if kind == "ebnf" else SCHEMA)
        if kind == "ebnf":  # schemas are bounded keyword by keyword
            from sglang.srt.grammar.guidance.probe import probe

            probe(grammar)
    except GrammarError as error:
        how = ", read as Lark since it has no '::='" if kind == "ebnf" and "::=" not in text else ""
        if how or str(error).startswith("grammar: "):
            message = str(error).removeprefix("grammar: ").removeprefix("ebnf")
            raise GrammarError(f"{kind}{how}: {message.lstrip(': ')}") from None
        raise
    return Plan(path="llguidance", text=grammar, schema=kind != "ebnf")


def _regex(pattern: str, backend: str) -> Plan:
    if backend == "outlines":
        from sglang.srt.grammar.outlines import pattern_of

        return Plan(path="outlines", text=pattern_of(Constraint("regex", pattern), ""))
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
        return Plan(path="trie", strings=automaton.strings)
    return Plan(path="fsm", data=automaton.pack())


def _guided(pattern: str, reason: GrammarError | None) -> Plan:
    """llguidance, for a pattern that can be written so that it reads it as ``re`` does; else the
    error is ``reason``, where there is one."""
    from sglang.srt.grammar.guidance import check, grammar_of
    from sglang.srt.grammar.guidance.probe import probe
    from sglang.srt.grammar.portable import portable

    try:
        grammar = grammar_of(Constraint("regex", portable(pattern)), "")
        check(grammar)
        probe(grammar)
    except GrammarError as error:
        raise reason or error from None
    return Plan(path="llguidance", text=grammar)
