"""LangChain: a prompt template and its output parser as a program.

    colours = program_of(PromptTemplate.from_template("Colours of {thing}: "), parser)
    colours.submit(thing="the sea")["output"].get()

The template is not rendered before it is sent, so a server sees what prompts have in common (Parrot
paper, section 6). Templates and parsers are read by their attributes; LangChain is not imported.
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterator
from typing import Any

from sglang.integrations.semantic_function import prompt_output
from sglang.ir.nodes import RoleBegin, RoleEnd
from sglang.program import SglFunction
from sglang.semantics import transform_words as transforms
from sglang.semantics.transform_words import Transforms

TEXT, OUTPUT = "text", "output"
ROLES = {"system": "system", "human": "user", "ai": "assistant"}
MESSAGES = {
    "SystemMessagePromptTemplate": "system",
    "HumanMessagePromptTemplate": "user",
    "AIMessagePromptTemplate": "assistant",
}
# By class: the transforms that make what the parser makes. None: the text as it is.
PARSERS: dict[str, Callable[[Any], Transforms | None]] = {
    "StrOutputParser": lambda parser: None,
    "JsonOutputParser": lambda parser: transforms.json(),
    "SimpleJsonOutputParser": lambda parser: transforms.json(),
    "CommaSeparatedListOutputParser": lambda parser: transforms.list("comma"),
    "NumberedListOutputParser": lambda parser: transforms.list("numbered"),
    "MarkdownListOutputParser": lambda parser: transforms.list("bullets"),
    "EnumOutputParser": lambda parser: transforms.enum(*(str(each.value) for each in parser.enum)),
    "BooleanOutputParser": lambda parser: transforms.bool((parser.true_val,), (parser.false_val,)),
    "DatetimeOutputParser": lambda parser: transforms.date(parser.format),
    "XMLOutputParser": lambda parser: transforms.xml(_only(parser.tags, "tag")),
    "RegexParser": lambda parser: transforms.regex(
        parser.regex, len([_only(parser.output_keys, "output key")])
    ),
}


def program_of(prompt: Any, parser: Any = None, **params: Any) -> SglFunction:
    """Return the program of a prompt template: its input variables are the arguments.

    Variable ``text`` is what the model writes, ``output`` what the parser makes of it, which the
    program returns. Enums are texts, dates ISO 8601; an XML parser of one tag gives its content.

    Args:
        prompt: a PromptTemplate or ChatPromptTemplate with f-strings, or a chain ``prompt | model |
            parser``, whose model is left out.
        parser: the output parser; None: that of the chain, or none.
        params: parameters of ``gen``.

    Raises:
        TypeError: a template, message or parser that no program stands for; the error names it.
    """
    if hasattr(prompt, "first") and hasattr(prompt, "last"):
        if len(between := getattr(prompt, "middle", ())) > 1:
            raise TypeError(
                f"the chain has {len(between)} steps between its prompt and its end; give "
                "prompt | model | parser, and call the other steps on the result"
            )
        last = prompt.last if type(prompt.last).__name__ in PARSERS or parser is None else None
        prompt, parser = prompt.first, parser if parser is not None else last
    chain = None if parser is None else _transforms(parser)
    pieces = list(_pieces(prompt))
    names = list(dict.fromkeys(name for kind, name in pieces if kind == "input"))
    if "s" in names:
        raise TypeError("the template has {s}, the name of a program's state; rename it")
    state = inspect.Parameter("s", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    node, chat = prompt_output(TEXT, params).node, hasattr(prompt, "messages")

    def template(s: Any, **inputs: Any) -> Any:
        for kind, value in pieces:
            if kind == "begin":
                s += RoleBegin(value)
            elif kind == "end":
                s += RoleEnd(value)
            else:
                s += inputs[value] if kind == "input" else value
        s += RoleBegin("assistant") + node + RoleEnd("assistant") if chat else node
        if chain is not None:
            s[OUTPUT] = chain.of(TEXT)
            return s[OUTPUT]
        s[OUTPUT] = s[TEXT]
        return s[TEXT]

    template.__signature__ = inspect.Signature([state, *given])  # type: ignore[attr-defined]
    return SglFunction(template)


def _transforms(parser: Any) -> Transforms | None:
    kind = type(parser).__name__
    if kind not in PARSERS or getattr(parser, "pydantic_object", None) is not None:
        raise TypeError(
            f"{kind} has no transform that makes the same; use one of {sorted(PARSERS)}, or a gen "
            "with schema= for a pydantic model"
        )
    return PARSERS[kind](parser)


def _only(values: Any, what: str) -> Any:
    if not values or len(values) != 1:
        raise TypeError(f"the parser has {values!r:.60}; a transform makes one value: one {what}")
    return values[0]


def _pieces(prompt: Any) -> Iterator[tuple[str, str]]:
    """The parts of a template in order: (kind, value) of texts, inputs, begins and ends of
    roles."""
    if not hasattr(prompt, "messages"):
        yield from _template(prompt)
        return
    for message in prompt.messages:
        kind = type(message).__name__
        role = MESSAGES.get(kind) or ROLES.get(getattr(message, "type", ""))
        if role is None:
            raise TypeError(
                f"a message is {kind}, which has no place in a program; use system, human and ai "
                "messages"
            )
        yield "begin", role
        if isinstance(text := getattr(message, "content", None), str):
            yield "text", text
        else:
            yield from _template(getattr(message, "prompt", None), prompt)
        yield "end", role


def _template(template: Any, around: Any = None) -> Iterator[tuple[str, str]]:
    text, style = getattr(template, "template", None), getattr(template, "template_format", None)
    if not isinstance(text, str) or style != "f-string":
        raise TypeError(
            f"{type(template).__name__} with format {style!r} has no place in a program; use a "
            "text template of f-string style"
        )
    known = {**(getattr(around, "partial_variables", None) or {}), **template.partial_variables}
    for literal, name, spec, conversion in string.Formatter().parse(text):
        if literal:
            yield "text", literal
        if name is None:
            continue
        if spec or conversion or not name.isidentifier():
            raise TypeError(f"the template has {{{name}}} with a format; use a plain {{name}}")
        if name not in known:
            yield "input", name
        elif isinstance(known[name], str):
            yield "text", known[name]
        else:
            raise TypeError(f"the partial variable {name!r} is {known[name]!r:.60}; give a text")
