"""State elimination: an automaton as a pattern again.

Patterns with assertions in the middle need it, since only an automaton carries them.
"""

from __future__ import annotations

from sglang.srt.grammar.character_dfa import DEAD, CharacterDfa
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.regex import compile_regex
from sglang.srt.grammar.regex.budget import Budget
from sglang.srt.grammar.regex.charset import LIMIT, CharSet
from sglang.srt.grammar.schema.quoted import any_of

MOST_STATES = 64
LONGEST = 64 << 10
BUDGET = Budget(pattern=16 << 10, dfa=2000, strings=1)


def from_automaton(source: str) -> str:
    """Terminal of Lark for the quoted strings that ``source`` matches whole.

    Raises GrammarError where the automaton, or the pattern made of it, is too large.
    """
    automaton = compile_regex(source, BUDGET)
    if automaton.states > MOST_STATES:
        raise GrammarError(
            f"the pattern needs {automaton.states} states, and with assertions at most "
            f"{MOST_STATES} are carried; rewrite it without them"
        )
    return f'/"{_pattern(_edges(automaton), automaton.states)}"/'


def _edges(automaton: CharacterDfa) -> dict[tuple[int, int], str]:
    """Pattern by (from, to). Start and end are two states more: states, states + 1."""
    bounds = [*automaton.edges.tolist(), LIMIT]
    labels = automaton.labels.tolist()
    found: dict[tuple[int, int], str] = {}
    for state in range(automaton.states):
        pairs: dict[int, list[tuple[int, int]]] = {}
        row = automaton.next[state].tolist()
        for at, label in enumerate(labels):
            after = row[label] if label != DEAD else DEAD
            if after != DEAD:
                pairs.setdefault(after, []).append((bounds[at], bounds[at + 1]))
        for after, members in pairs.items():
            found[state, after] = any_of(CharSet.of(members))
        if automaton.final[state]:
            found[state, automaton.states + 1] = ""
    found[automaton.states, 0] = ""
    return found


def _pattern(edges: dict[tuple[int, int], str], states: int) -> str:
    left = set(range(states))
    while left:
        state = min(left, key=lambda s: (_weight(edges, s), s))
        left.discard(state)
        loop = edges.pop((state, state), None)
        again = "" if loop is None else f"(?:{loop})*"
        into = [(a, text) for (a, b), text in edges.items() if b == state]
        out = [(b, text) for (a, b), text in edges.items() if a == state]
        edges = {pair: text for pair, text in edges.items() if state not in pair}
        for a, before in into:
            for b, behind in out:
                path = f"{before}{again}{behind}"
                other = edges.get((a, b))
                edges[a, b] = path if other is None else f"(?:{other}|{path})"
                if len(edges[a, b]) > LONGEST:
                    raise GrammarError(
                        f"the pattern takes more than {LONGEST} bytes without its assertions; "
                        "rewrite it without them"
                    )
    return edges[states, states + 1]


def _weight(edges: dict[tuple[int, int], str], state: int) -> int:
    into = [len(text) for (a, b), text in edges.items() if b == state and a != state]
    out = [len(text) for (a, b), text in edges.items() if a == state and b != state]
    return (
        sum(into) * len(out)
        + sum(out) * len(into)
        + len(edges.get((state, state), "")) * len(into) * len(out)
    )
