"""emit: shapes as rules of llguidance's Lark.

A state is a rule, and a shape one of its alternatives. Properties stand in the order in which the
schema mentions them, and others after them. Every terminal is ours, so that an object's names and
the lengths of strings mean what the schema means by them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from sglang.srt.grammar.schema.arrays import children_of_array, spread, write_array
from sglang.srt.grammar.schema.normal_form import Normalizer
from sglang.srt.grammar.schema.objects import write_objects
from sglang.srt.grammar.schema.property_names import PropertyNames
from sglang.srt.grammar.schema.schema_document import Refusal
from sglang.srt.grammar.schema.terminals import (
    needs_json,
    number_json,
    number_terminal,
    string_terminal,
)
from sglang.srt.grammar.schema.value_shapes import Array, Number, Object, Shape, State, String, Word

MOST_STATES = 20_000


class Emitter:
    """Rules for the states reachable from one schema.

    Args:
        space: pattern for the white space between tokens, of one character or more; "" for none.
        prefix: what the names of rules begin with.
    """

    def __init__(self, normal: Normalizer, space: str, prefix: str) -> None:
        self.normal = normal
        self.rules: list[str] = []
        self.prefix = prefix
        gap = f"({space})?" if space else ""
        blank = f"/{space}/? " if space else ""
        self.comma = f"/{gap},{gap}/" if space else '","'
        self.colon = f"/{gap}:{gap}/" if space else '":"'
        self.blank = blank
        self.names = PropertyNames(normal)
        self.combined: dict[str, str] = {}  # see Compiled
        self._pointer = ""  # of the schema being written
        self._terminals: dict[str, str] = {}
        self._rules: dict[State, str] = {}
        self._shapes: dict[State, list[Shape]] = {}
        self._dead: set[State] = set()

    def start(self, state: State, pointer: str) -> str:
        """The rule of a state, with all that it needs. Raises Refusal."""
        self._reach(state, pointer)
        while True:
            self._bury()
            if state in self._dead:
                raise Refusal(
                    pointer,
                    "allows no value that can be written: its conditions contradict each other, "
                    "or a number needs more than 20 digits.",
                )
            found = self.rule(state)
            self._number(state)
            empty = [one for one in list(self._rules) if not self._write(one)]
            if not empty:
                return found
            for one in empty:  # states without a rule, which only counting shows
                self._shapes[one] = []
            self.rules.clear()
            self._rules.clear()
            self._terminals.clear()
            self.combined.clear()

    def _number(self, state: State) -> None:
        """Name the rules of the states below one."""
        waiting = [state]
        while waiting:
            for shape in self._shapes[waiting.pop()]:
                for child in self._children(shape):
                    if child not in self._dead and child not in self._rules:
                        self.rule(child)
                        waiting.append(child)

    def rule(self, state: State) -> str:
        if state not in self._rules:
            self._rules[state] = f"{self.prefix}s{len(self._rules)}"
        return self._rules[state]

    def dead(self, state: State) -> bool:
        """Whether no value satisfies a state."""
        return state in self._dead

    def shapes(self, state: State) -> list[Shape]:
        return self._shapes[state]

    def pointer(self, shape: Object) -> str:
        """JSON pointer of a schema of the object."""
        nodes = self.normal.document.nodes
        found = [state for scope in shape.scopes for state in scope.properties.values() if state]
        return nodes[max(found[0])].pointer.rpartition("/")[0] if found else ""

    def terminal(self, expression: str, combined: bool) -> str:
        """The name of a terminal. ``combined``: it may have many states."""
        name = self._terminals.get(expression)
        if name is None:
            name = self._terminals[expression] = f"{self.prefix.upper()}T{len(self._terminals)}"
            self.rules.append(f"{name}: {expression}")
            if combined:
                self.combined[expression] = self._pointer
        return name

    def helper(self, body: str) -> str:
        """The name of one more rule."""
        name = f"{self.prefix}r{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    # -- reachable states ------------------------------------------------------------------------

    def _reach(self, state: State, pointer: str) -> None:
        waiting = [state]
        while waiting:
            one = waiting.pop()
            if one in self._shapes:
                continue
            found = [s for shape in self.normal.shapes(one) for s in spread(shape)]
            self._shapes[one] = found
            if len(self._shapes) > MOST_STATES:
                raise Refusal(
                    pointer, f"has more than {MOST_STATES} different places; simplify it."
                )
            waiting += [child for shape in found for child in self._children(shape)]

    def _children(self, shape: Shape) -> Iterator[State]:
        if isinstance(shape, Object):
            yield from (shape.named(name) for name in [*shape.order, *self.names.extra(shape)])
            yield from (state for _, state in self.names.others(shape))
            if shape.some:
                yield from (state for _, state in self.names.others(shape, True))
        elif isinstance(shape, Array):
            yield from children_of_array(shape)

    def _bury(self) -> None:
        """Find the states without a finite value: all but those that are shown to have one."""
        alive: set[State] = set()
        left = dict(self._shapes)
        while True:
            found = [
                state for state, shapes in left.items() if any(self._ends(s, alive) for s in shapes)
            ]
            if not found:
                break
            alive.update(found)
            for state in found:
                del left[state]
        self._dead = set(left)

    def _ends(self, shape: Shape, alive: set[State]) -> bool:
        if isinstance(shape, Object):
            if shape.some and not any(s in alive for _, s in self.names.others(shape, True)):
                return False
            return all(shape.named(name) in alive for name in shape.required)
        if isinstance(shape, Array):
            return all(shape.item(at) in alive for at in range(min(shape.low, shape.prefix + 1)))
        return not isinstance(shape, Number) or needs_json(shape) or bool(number_terminal(shape))

    # -- rules -----------------------------------------------------------------------------------

    def _write(self, state: State) -> bool:
        """Whether there is anything to write."""
        nodes = self.normal.document.nodes
        self._pointer = min((nodes[max(n, ~n)].pointer for n in state), default="").rstrip("#")
        plain: list[str] = []
        options: list[str] = []
        for shape in self._shapes[state]:
            if isinstance(shape, Word):
                plain.append(f'"{shape.text}"')
            elif isinstance(shape, String):
                plain.append(string_terminal(shape))
            elif isinstance(shape, Number):
                if needs_json(shape):
                    options.append(f"%json {json.dumps(number_json(shape))}")
                else:
                    text = number_terminal(shape)
                    plain += [f"({text})"] if text else []
            elif isinstance(shape, Array):
                options += write_array(self, shape)
        objects = [shape for shape in self._shapes[state] if isinstance(shape, Object)]
        options += write_objects(self, objects)
        if plain:
            strings = [shape for shape in self._shapes[state] if isinstance(shape, String)]
            combined = any(map(_counts, strings))
            options.insert(0, self.terminal(" | ".join(dict.fromkeys(plain)), combined))
        self.rules.append(f"{self._rules[state]}: " + " | ".join(dict.fromkeys(options)))
        return bool(options)


def _counts(shape: String) -> bool:
    """Whether patterns are combined, or count."""
    return bool(shape.unlike) or shape.conditions > 1 or any("{" in p.source for p in shape.like)
