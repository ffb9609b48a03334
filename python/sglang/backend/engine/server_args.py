"""ServerArgs: the settings of a runtime as a dataclass, generated from ``srt.config``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from sglang.srt.config import Config, add_arguments, from_arguments


def _fields() -> list[tuple[str, type, Any]]:
    """Return name, type and default of every setting."""
    return [(name, type(value), value) for name, value in Config().settings().items()]


_PUBLIC = frozenset(Config().public())
_Settings: Any = dataclasses.make_dataclass("_Settings", _fields(), init=False)


class ServerArgs(_Settings):  # type: ignore[misc]
    """Settings for ``Engine(server_args=...)``, ``Runtime(server_args=...)`` and
    ``sglang.srt.entrypoints.http_server.launch_server``.

    A field is a flag of ``launch_server``: ``page_size`` is ``--page-size``. The constructor checks
    the values; users of the settings check them again, as a field may be changed in between.

    Raises:
        TypeError, ValueError: an unknown setting, or a value out of range.
    """

    def __init__(self, model_path: str = "", **settings: Any) -> None:
        for name, value in Config.of(model_path=model_path, **settings).settings().items():
            setattr(self, name, value)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add every flag of ``launch_server`` to ``parser``."""
        add_arguments(parser)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> ServerArgs:
        """Return the settings among the parsed ``args``; ignore other names. Raises ValueError."""
        return cls(**from_arguments(args).settings())

    def url(self) -> str:
        """Return the URL of a server with these settings on this machine: ``http://host:port``."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.ssl_certfile else 'http'}://{shown}:{self.port}"

    def chosen(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, by name."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    def __repr__(self) -> str:
        shown = {k: v if k in _PUBLIC else "***" for k, v in self.chosen().items()}
        return f"ServerArgs({', '.join(f'{k}={v!r}' for k, v in shown.items())})"


def settings_of(server_args: ServerArgs | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of ``server_args``, overridden by ``settings``."""
    return settings if server_args is None else {**server_args.chosen(), **settings}


def launch_server(server_args: ServerArgs) -> None:
    """Serve in this process, in its main thread, until a signal. Keys that ``server_args`` lacks
    are taken from the environment, as by the command.

    Raises SystemExit if a setting is out of range, or serving failed.
    """
    from sglang.srt.config.command_line import Parser
    from sglang.srt.web.launch import add_parser_arguments, run

    parser = Parser(prog="launch_server")
    add_parser_arguments(parser)
    arguments = parser.parse_args([], argparse.Namespace(**server_args.chosen()))
    if status := run(arguments, parser):
        sys.exit(status)
