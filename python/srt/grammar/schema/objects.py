"""Objects of a shape as alternatives of a rule."""

from __future__ import annotations

from typing import Protocol

from sglang.srt.grammar.schema.arrays import ArrayEmitter, repeated
from sglang.srt.grammar.schema.property_names import PropertyNames
from sglang.srt.grammar.schema.quoted import literal
from sglang.srt.grammar.schema.schema_document import Refusal
from sglang.srt.grammar.schema.value_shapes import Object

MOST_OPTIONAL = 1500  # llguidance's parser follows all of them at once, and takes 2,000
MOST_COUNTED = 4000  # rules for one object


class ObjectEmitter(ArrayEmitter, Protocol):
    """Rules being written (``emit.Emitter``), as objects need them."""

    names: PropertyNames
    colon: str

    def helper(self, body: str) -> str:
        """The name of one more rule."""
        ...

    def terminal(self, expression: str, combined: bool) -> str:
        """The name of a terminal. ``combined``: it may have many states."""
        ...

    def pointer(self, shape: Object) -> str:
        """JSON pointer of a schema of the object."""
        ...


def write_object(emitter: ObjectEmitter, shape: Object) -> list[str]:
    """Alternatives for objects of a shape; none where there is no such object. Raises Refusal."""
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


def _others(emitter: ObjectEmitter, shape: Object, hit: bool) -> str:
    """The rule of a property that is not mentioned; "" where there is none."""
    combined = bool(shape.patterns or shape.names or shape.some)
    pairs = [
        f"{emitter.terminal(name, combined)} {emitter.colon} {emitter.rule(state)}"
        for name, state in emitter.names.others(shape, hit)
        if not emitter.dead(state)
    ]
    return emitter.helper(" | ".join(pairs)) if pairs else ""


def _uncounted(emitter: ObjectEmitter, pairs: list[tuple[str, bool]], other: str, hit: str) -> str:
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
        self, emitter: ObjectEmitter, shape: Object, pairs: list[tuple[str, bool]], other: str
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
        """The text behind ``count`` pairs, from the pair ``at`` on; None where there is none. Never
        empty without a pair before."""
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
