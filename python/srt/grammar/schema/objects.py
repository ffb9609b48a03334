"""Objects of a shape as alternatives of a rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.grammar.schema.arrays import repeated
from sglang.srt.grammar.schema.document import Refusal
from sglang.srt.grammar.schema.normal import Normal
from sglang.srt.grammar.schema.patterns import Pattern
from sglang.srt.grammar.schema.probe import unmatched
from sglang.srt.grammar.schema.quoted import STRING, literal, literals
from sglang.srt.grammar.schema.shapes import ANY, Object, State, String, fits_string
from sglang.srt.grammar.schema.terminals import conjunction, string_terminal

if TYPE_CHECKING:
    from sglang.srt.grammar.schema.emit import Emitter

MOST_TOGETHER = 64  # sets of patterns that a name may match at once
MOST_OPTIONAL = 1500  # they are all under way at once in llguidance's parser, which takes 2,000
MOST_COUNTED = 4000  # rules for one object


class Names:
    """The names that an object may have beside those that are mentioned."""

    def __init__(self, normal: Normal) -> None:
        self._normal = normal
        self._found: dict[tuple[Object, bool], list[tuple[str, State]]] = {}

    def allowed(self, shape: Object, name: str) -> bool:
        """Whether ``propertyNames`` lets a name be."""
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
        """Terminal and state of the value, for each set of names treated alike. With ``hit``: of
        the one property that must be there."""
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
    normal: Normal, patterns: tuple[Pattern, ...], shape: Object
) -> list[frozenset[Pattern]]:
    """The sets of patterns that a name may match, and no others of them."""
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
    """Terminal of the names that match these of the patterns alone."""
    parts = [p.expression for p in patterns if p in matched]
    parts += [f"~{p.expression}" for p in patterns if p not in matched]
    return conjunction([*kept, *parts])


def write_object(emitter: Emitter, shape: Object) -> list[str]:
    """Alternatives; none where there is no such object. Raises Refusal."""
    pairs: list[tuple[str, bool]] = []
    for name in [*shape.order, *emitter.names.extra(shape)]:
        state = shape.named(name)
        if emitter.dead(state) or not emitter.names.allowed(shape, name):
            if name in shape.required:
                return []
            continue
        text = f"{literal(name)} {emitter.colon} {emitter.rule(state)}"
        pairs.append((text, name in shape.required))
    if sum(not required for _, required in pairs) > MOST_OPTIONAL:
        raise Refusal(
            emitter.pointer(shape),
            f"an object has more than {MOST_OPTIONAL} properties that are not required; use fewer.",
        )
    other = _others(emitter, shape, False)
    hit = _others(emitter, shape, True) if shape.some else ""
    if shape.some and not hit:
        return []
    needed = sum(required for _, required in pairs)
    if shape.low <= needed + bool(hit) and (
        shape.high is None or (not other and not hit and shape.high >= len(pairs))
    ):
        content, empty = _uncounted(emitter, pairs, other, hit), needed == 0 and not hit
    elif hit:
        raise Refusal(shape.counted, "cannot be enforced beside a negated schema of properties.")
    else:
        content, empty = _Counter(emitter, shape, pairs, other).content(), shape.low == 0 == needed
    blank = emitter.blank
    found = [f'"{{" {blank}{content} {blank}"}}"'] if content else []
    return [*found, f'"{{" {blank}"}}"'] if empty else found


def _others(emitter: Emitter, shape: Object, hit: bool) -> str:
    """The rule of a property that is not mentioned; "" where there is none."""
    combined = bool(shape.patterns or shape.names or shape.some)
    pairs = [
        f"{emitter.terminal(name, combined)} {emitter.colon} {emitter.rule(state)}"
        for name, state in emitter.names.others(shape, hit)
        if not emitter.dead(state)
    ]
    return emitter.helper(" | ".join(pairs)) if pairs else ""


def _uncounted(emitter: Emitter, pairs: list[tuple[str, bool]], other: str, hit: str) -> str:
    """One pair or more. The property that must be there is the last, so that no other of the same
    name takes its place."""
    comma = emitter.comma
    first = next((at for at, (_, required) in enumerate(pairs) if required), len(pairs))
    after = f"({comma} {other})*" if other else ""
    alone = f"{other} {after}" if other else ""
    if hit:
        alone = f"({other} {comma})* {hit}" if other else hit
        after = f"{after} {comma} {hit}"
    options = [alone] if alone and first == len(pairs) else []
    for at in range(len(pairs) - 1, -1, -1):
        text, required = pairs[at]
        if at <= first:
            if at > 0 and len(after) > 40:
                after = emitter.helper(after)
            options.append(f"{text} {after}")
        after = f"{comma} {text} {after}" if required else f"({comma} {text})? {after}"
    options.reverse()
    return f"({' | '.join(options)})" if len(options) > 1 else "".join(options)


class _Counter:
    """Objects with a number of properties between two limits."""

    def __init__(
        self, emitter: Emitter, shape: Object, pairs: list[tuple[str, bool]], other: str
    ) -> None:
        self._emitter = emitter
        self._shape = shape
        self._pairs = pairs
        self._other = other
        self._cap = shape.low if shape.high is None else max(shape.low, shape.high)
        self._made: dict[tuple[int, int], str | None] = {}
        if len(pairs) * (self._cap + 1) > MOST_COUNTED:
            raise Refusal(
                shape.counted,
                f"counting {len(pairs)} properties up to {self._cap} takes too many rules; "
                "use a smaller number.",
            )

    def content(self) -> str:
        """One pair or more; "" where that cannot be."""
        found = self._from(0, 0)
        return found or ""

    def _from(self, at: int, count: int) -> str | None:
        """What follows ``count`` pairs, from the pair ``at`` on; None where nothing may. It is not
        empty where no pair came before."""
        if self._shape.high is None:
            count = min(count, self._cap) if count else 0
        key = (at, count)
        if key not in self._made:
            found = self._pair(at, count) if at < len(self._pairs) else self._rest(count)
            long = found is not None and len(found) > 40
            self._made[key] = self._emitter.helper(found) if long and found else found
        return self._made[key]

    def _pair(self, at: int, count: int) -> str | None:
        text, required = self._pairs[at]
        options = []
        if self._shape.high is None or count < self._shape.high:
            after = self._from(at + 1, count + 1)
            if after is not None:
                options.append(f"{self._emitter.comma if count else ''} {text} {after}")
        if not required:
            without = self._from(at + 1, count)
            if without is not None:
                options.append(without or '""')
        if not options:
            return None
        return f"({' | '.join(options)})" if len(options) > 1 else options[0]

    def _rest(self, count: int) -> str | None:
        low = max(0, self._shape.low - count)
        room = None if self._shape.high is None else self._shape.high - count
        if not self._other or room == 0:
            return "" if low == 0 and count else None
        if low > 1:
            raise Refusal(
                self._shape.counted,
                "more than one property that is not listed cannot be counted, since a name may be "
                "written twice; list the properties, or ask for fewer.",
            )
        comma, other = self._emitter.comma, self._other
        if count:
            return repeated(f"{comma} {other}", low, room)
        return f"{other} " + repeated(f"{comma} {other}", 0, None if room is None else room - 1)


__all__ = ["ANY", "Names", "write_object"]
