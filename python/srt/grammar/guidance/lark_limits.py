"""Limits of a user's grammar. llguidance follows rules by recursion, and a deep rule may overflow
its stack. A single parser row of a wide rule may take a step's whole work."""

from __future__ import annotations

import re

from sglang.srt.grammar.grammar_protocol import GrammarError

DEEPEST = 200
MOST_ALTERNATIVES = 8000  # alternatives of all rules; a row compares each item with the others
_PLAIN = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|//[^\n]*|#[^\n]*')
_RULE = re.compile(r"(?m)^[ \t]*[?!]*([A-Za-z_][\w-]*)(?:\[[^\]\n]*\])?(?:::_|\.\d+)?[ \t]*:(?!:)")
_BRANCH = re.compile(r"[|?*\[]")
_NAME = re.compile(r"[A-Za-z_][\w-]*")


def check_depth(text: str) -> None:
    """Raise GrammarError where rules refer to each other more than DEEPEST levels deep, or have
    more than MOST_ALTERNATIVES."""
    text = _PLAIN.sub(lambda found: " " if found[0][0] in '"/#' else "", text)
    found = list(_RULE.finditer(text))
    bodies: dict[str, list[str]] = {}
    alternatives = 0
    for at, rule in enumerate(found):
        end = found[at + 1].start() if at + 1 < len(found) else len(text)
        bodies.setdefault(rule[1], []).extend(_NAME.findall(text, rule.end(), end))
        if not rule[1].isupper():  # the lexer handles those of a terminal
            alternatives += 1 + len(_BRANCH.findall(text, rule.end(), end))
    seen: set[str] = set()
    for start in ["start", *bodies]:
        if start in bodies and start not in seen:
            _walk(start, bodies, seen)
    if alternatives > MOST_ALTERNATIVES:
        raise GrammarError(
            f"ebnf: its rules have {alternatives} alternatives, at most {MOST_ALTERNATIVES} are "
            "possible; write words and character classes as terminals, or use fewer."
        )


def _walk(start: str, bodies: dict[str, list[str]], seen: set[str]) -> None:
    """Visit depth first, as llguidance does: a rule visited before costs nothing."""
    seen.add(start)
    stack = [iter(bodies[start])]
    while stack:
        if len(stack) > DEEPEST:
            raise GrammarError(
                f"ebnf: rules refer to each other more than {DEEPEST} levels deep; "
                "shorten the chain."
            )
        after = next((name for name in stack[-1] if name in bodies and name not in seen), None)
        if after is None:
            stack.pop()
        else:
            seen.add(after)
            stack.append(iter(bodies[after]))
