"""Translation: upstream SGLang's flags and values as ours (the tables of ``upstream``)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from sglang.srt.config.upstream import (
    ABSENT,
    ABSENT_VALUES,
    MEANS,
    SPELLINGS,
    VALUES,
    WITHOUT_EFFECT,
    FlagRow,
)


class Flag(NamedTuple):
    """A flag of the tables.

    Attributes:
        nargs: what it takes: "" nothing, "=" one value, "*" several.
        inert: values with which an absent one asks for nothing.
    """

    name: str
    nargs: str
    inert: tuple[str, ...]
    row: FlagRow
    absent: bool


def _flags() -> Iterator[Flag]:
    for rows, absent in ((WITHOUT_EFFECT, False), (ABSENT, True)):
        for row in rows:
            for text in row.flags.split():
                mark = next((mark for mark in "=*" if mark in text), "")
                name, _, inert = text.partition(mark) if mark else (text, "", "")
                values = tuple(inert.split(",")) if inert else ()
                yield Flag(name.replace("-", "_"), mark, values, row, absent)


FLAGS: Mapping[str, Flag] = {flag.name: flag for flag in _flags()}


_TAKES: Mapping[str, dict[str, Any]] = {
    "": {"action": argparse.BooleanOptionalAction}, "=": {}, "*": {"nargs": "*"},
}  # fmt: skip


def option(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def add_upstream_arguments(
    parser: argparse.ArgumentParser, types: Mapping[str, Callable[[str], Any] | None] | None = None
) -> None:
    """Add the flags of the tables. ``--help`` does not list them; its last line tells of them.
    ``types``: what reads the value of a setting, by its name."""
    parser.epilog = parser.epilog or (
        "Flags of upstream SGLang are accepted too where they change no answer, with a warning; "
        "docs/coming-from.md lists them."
    )
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    for name, flag in FLAGS.items():
        takes = _TAKES[flag.nargs]
        parser.add_argument(option(name), dest=name, **takes, **hidden)
    for name, (_, meant) in MEANS.items():
        parser.add_argument(
            option(name), dest=name, **_TAKES["" if True in meant else "="], **hidden
        )
    for name, setting in SPELLINGS.items():
        reads = (types or {}).get(setting) or str
        parser.add_argument(option(name), dest=setting, type=reads, **hidden)


def translate(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The settings of this server that ``settings`` mean, and what of them is without effect.

    Raises ValueError for a feature that is absent, naming it.
    """
    found: dict[str, Any] = {}
    meant: dict[str, Any] = {}
    notes: list[str] = []
    for given, value in settings.items():
        name = SPELLINGS.get(given, given)
        if name in FLAGS:
            notes += _passed_over(FLAGS[name], value)
        elif name in MEANS:
            meant |= _meant(name, value)
        else:
            found[name], note = _value(name, value)
            notes += [f"{option(name)} {value} ({note})"] if note else []
    return {**found, **meant}, notes


def _passed_over(flag: Flag, value: Any) -> list[str]:
    """Warning for an ignored value. Raises ValueError for a feature that is absent."""
    if value is None or value is False or value == []:
        return []
    shown = option(flag.name)
    if flag.nargs:
        words = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        shown = f"{shown} {words}"
        if flag.absent and words in flag.inert:
            return [f"{shown} (the only value here)"]
    if not flag.absent:
        return [f"{shown} ({flag.row.what})"]
    use = f"use {' or '.join(flag.inert)}, or leave it out" if flag.inert else "leave it out"
    advice = f"{flag.row.advice}; {use}" if flag.row.advice else use
    raise ValueError(f"{shown}: {flag.row.what} is not in this version; {advice}")


def _meant(name: str, value: Any) -> dict[str, Any]:
    """The setting that a flag of ``MEANS`` is a value of. Raises ValueError."""
    setting, meant = MEANS[name]
    if value is None or value is False:
        return {}
    if value in meant:
        return {setting: meant[value]}
    known = ", ".join(map(repr, meant))
    raise ValueError(f"{option(name)} is {value!r}; use one of {known}, or leave it out")


def _value(name: str, value: Any) -> tuple[Any, str]:
    """The value of a setting that upstream's means, and what there is to warn of."""
    if name == "lora_target_modules" and value in ("all", ["all"], ("all",)):
        return (), ""
    if name == "lora_paths" and isinstance(value, (list, tuple)):
        return [_lora_path(entry) for entry in value], ""
    if not isinstance(value, str):
        return value, ""
    absent = ABSENT_VALUES.get(name, {}).get(value.lower())
    if absent:
        feature, advice = absent
        raise ValueError(f"{option(name)} {value}: {feature} is not in this version; {advice}")
    known = VALUES.get(name, {})
    return known.get(value, known.get(value.lower(), (value, "")))


def _lora_path(entry: Any) -> Any:
    """An adapter as NAME=PATH, which upstream also takes as a JSON object. Raises ValueError."""
    if not isinstance(entry, str) or not entry.startswith("{"):
        return entry
    try:
        given = json.loads(entry)
        name, path = given["lora_name"], given["lora_path"]
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"--lora-paths has {entry!r:.80}; give NAME=PATH, or a JSON object with lora_name and "
            "lora_path"
        ) from error
    if given.get("pinned"):
        raise ValueError(
            f"--lora-paths has {entry!r:.80}; an adapter is pinned by POST /load_lora_adapter only"
        )
    return f"{name}={path}"
