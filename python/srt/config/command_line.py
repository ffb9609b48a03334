"""Parser: of every command here; it knows its version and says what an unknown flag was to be.
Keys come from the environment too."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from sglang.srt.core.nearest import nearest
from sglang.srt.core.version import __version__

# Flags of other servers than upstream's, whose own are in ``sglang.srt.config.upstream``.
ELSEWHERE = {
    "--max-model-len": "--context-length",
    "--ctx-size": "--context-length",
    "--max-num-seqs": "--max-running-requests",
    "--gpu-memory-utilization": "--mem-fraction-static",
    "--speculative-config": "--speculative-algorithm",
    "--num-speculative-tokens": "--speculative-num-draft-tokens",
    "--model-draft": "--speculative-draft-model-path",
    "--speculative-model": "--speculative-draft-model-path",
    "--lora-modules": "--lora-paths", "--max-loras": "--max-loras-per-batch",
    "--max-cpu-loras": "--max-loaded-loras",
}  # fmt: skip


def keys_from_environment(arguments: argparse.Namespace, *names: str) -> None:
    """Take the keys of these names that were not given from the environment: a command line can be
    read by every user. Raise ValueError where a variable is set and empty."""
    for name in names:
        variable = f"SGLANG_{name.upper()}"
        value = os.environ.get(variable)
        if getattr(arguments, name, None) is not None or value is None:
            continue
        if not value.strip():
            raise ValueError(f"{variable} is set and is {value!r}; give a key, or unset it")
        setattr(arguments, name, value)


class HelpText(argparse.HelpFormatter):
    """argparse's, but paragraphs of a description or an epilog whose lines are indented, such as
    examples, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text
        return "\n\n".join(
            part if part.startswith("  ") else filled(part, width, indent)
            for part in text.strip("\n").split("\n\n")
        )


class Parser(argparse.ArgumentParser):
    """argparse's, with ``--version``. ``meant``: what words that are no choice here stand for."""

    def __init__(self, *, meant: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(**{"formatter_class": HelpText, **options})
        self._meant = meant or {}
        text = f"sglang {__version__}"
        self.add_argument(
            "--version", action="version", version=text, help="print the version and exit"
        )

    def _near(self, flag: str) -> list[str]:
        """The flag that an unknown one stands for: the same in other words, or a slip away."""
        if flag in ELSEWHERE:
            return [ELSEWHERE[flag]] if ELSEWHERE[flag] in self._option_string_actions else []
        found = nearest(flag, [one for one, action in self._option_string_actions.items()
                               if action.help != argparse.SUPPRESS])  # fmt: skip
        return [found] if found else []

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Flags that an abbreviation may be: of those that are shown, if any of them fits."""
        found: list[Any] = super()._get_option_tuples(option_string)
        return [one for one in found if one[0].help != argparse.SUPPRESS] or found

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (.*)", message)
        flags = [word for word in unknown[1].split() if word.startswith("--")] if unknown else []
        near = [found for word in flags for found in self._near(word.partition("=")[0])]
        if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message, re.DOTALL):
            known = [word.strip("'\"") for word in choice[2].split(", ")]
            found = self._meant.get(choice[1]) or nearest(choice[1], known)
            near = [found] if found else []
        super().error(message + (f"; did you mean {', '.join(near)}?" if near else ""))

    def print_usage(self, file: Any = None) -> None:
        """Exit with the message in one line: all flags would bury it."""
        words = [_usage(action) for action in self._get_positional_actions()]
        print(" ".join([f"usage: {self.prog} [--help] [flags]", *words]), file=file)


def _usage(action: argparse.Action) -> str:
    """The name of a positional argument, in brackets where it may be left out."""
    name = str(action.metavar or action.dest)
    more = f"{name} ..." if action.nargs in ("*", "+", argparse.REMAINDER) else name
    return f"[{more}]" if action.nargs in ("?", "*", argparse.REMAINDER) else more
