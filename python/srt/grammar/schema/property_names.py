"""PropertyNames: names of an object's properties that the schema does not mention one by one."""

from __future__ import annotations

from sglang.srt.grammar.schema.normal_form import Normalizer
from sglang.srt.grammar.schema.quoted import STRING, literals
from sglang.srt.grammar.schema.schema_document import Refusal
from sglang.srt.grammar.schema.string_patterns import Pattern
from sglang.srt.grammar.schema.terminals import conjunction, string_terminal
from sglang.srt.grammar.schema.unmatched_terminal import unmatched
from sglang.srt.grammar.schema.value_shapes import Object, State, String, fits_string

MOST_TOGETHER = 64  # sets of patterns that a name may match at once


class PropertyNames:
    """The names that an object may have beside those that are mentioned."""

    def __init__(self, normal: Normalizer) -> None:
        self._normal = normal
        self._found: dict[tuple[Object, bool], list[tuple[str, State]]] = {}

    def allowed(self, shape: Object, name: str) -> bool:
        """Whether ``propertyNames`` allows a name."""
        if not shape.names:
            return True
        shapes = self._normal.shapes(shape.names)
        return any(isinstance(one, String) and fits_string(one, name) for one in shapes)

    def extra(self, shape: Object) -> list[str]:
        """Names that only ``propertyNames`` mentions, where it lists them."""
        found: dict[str, None] = {}
        for one in self._normal.shapes(shape.names) if shape.names else ():
            if isinstance(one, String) and one.values is not None:
                found |= dict.fromkeys(one.values)
        return [name for name in found if name not in shape.order]

    def others(self, shape: Object, hit: bool = False) -> list[tuple[str, State]]:
        """Terminal of the names, and state of their values, for each set of names treated alike.
        With ``hit``: for the one property that must be there."""
        found = self._found.get((shape, hit))
        if found is None:
            found = self._found[shape, hit] = self._others(shape, hit)
        return found

    def _others(self, shape: Object, hit: bool) -> list[tuple[str, State]]:
        kept = [STRING]
        if shape.names:
            names = [s for s in self._normal.shapes(shape.names) if isinstance(s, String)]
            open_names = [string_terminal(s) for s in names if s.values is None]
            if not open_names:
                return []
            kept = [f"({' | '.join(open_names)})"]
        taken = [*shape.order, *self.extra(shape)]
        some = shape.some[0] if shape.some else None
        patterns = shape.patterns
        if some is not None:
            patterns = tuple(dict.fromkeys([*patterns, *some.inside, *some.outside]))
            taken += sorted(some.names - set(taken)) if hit else []
        found: dict[State, list[str]] = {}
        sets = together(self._normal, patterns, shape)
        for matched in sets:
            state = shape.matching(matched)
            if hit and some is not None:
                if not some.inside <= matched or some.outside & matched:
                    continue
                state |= some.state
            if not self._normal.empty(state):
                found.setdefault(state, []).append(_matching(patterns, matched, kept))
        rest = []
        for state, texts in found.items():
            text = f"({' | '.join(texts)})" if len(texts) > 1 else texts[0]
            if len(texts) == len(sets):
                text = conjunction(kept)
            rest.append((conjunction([text, f"~{literals(taken)}"]) if taken else text, state))
        return rest


def together(
    normal: Normalizer, patterns: tuple[Pattern, ...], shape: Object
) -> list[frozenset[Pattern]]:
    """The sets of patterns that a name may match, each without the other patterns."""
    found: list[frozenset[Pattern]] = [frozenset()]
    for at, pattern in enumerate(patterns):
        found += [
            matched | {pattern}
            for matched in found
            if not matched or not unmatched(_matching(patterns[: at + 1], matched | {pattern}, []))
        ]
        if len(found) > MOST_TOGETHER:
            numbers = [min(s) for scope in shape.scopes for _, s in scope.patterns if s]
            raise Refusal(
                normal.document.nodes[numbers[0]].pointer,
                f"{len(patterns)} patterns of names overlap; make them exclusive.",
            )
    return [m for m in found if not patterns or not unmatched(_matching(patterns, m, [STRING]))]


def _matching(patterns: tuple[Pattern, ...], matched: frozenset[Pattern], kept: list[str]) -> str:
    """Terminal of the names that match ``matched`` and no other pattern."""
    parts = [p.expression for p in patterns if p in matched]
    parts += [f"~{p.expression}" for p in patterns if p not in matched]
    return conjunction([*kept, *parts])
