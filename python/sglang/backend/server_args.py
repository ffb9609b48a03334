"""ServerArgs: the settings of a runtime, checked when they are given."""

from __future__ import annotations

from typing import Any

from sglang.errors import lacking


class ServerArgs:
    """Settings for ``Engine(server_args=...)`` and ``Runtime(server_args=...)``.

    Keyword arguments are the flags of ``launch_server`` (``model_path=``, ``page_size=``, ...);
    every setting is an attribute. Needs the extra ``srt``.

    Raises:
        TypeError, ValueError: an unknown setting, or a value out of range.
    """

    def __init__(self, **settings: Any) -> None:
        try:
            from srt.config import Config
        except ImportError as error:
            raise lacking("ServerArgs", "srt", error) from error
        self.given = settings
        self.__dict__.update(Config.of(**settings).settings())

    def __repr__(self) -> str:
        return f"ServerArgs({', '.join(f'{k}={v!r}' for k, v in self.given.items())})"


def settings_of(server_args: ServerArgs | None, settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` over those of ``server_args``."""
    return settings if server_args is None else {**server_args.given, **settings}
