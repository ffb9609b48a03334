"""Bounded file: the bytes of a file of limited size."""

from __future__ import annotations


def read_bounded(path: str, most: int) -> bytes:
    """The bytes of a file. Raises OSError, and ValueError where there are more than ``most``.

    The bytes are counted as they are read: a device, a pipe and a file of /proc have size 0.
    """
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} has more than {most} bytes; give a file of at most that many")
    return data


def read_bounded_text(path: str, most: int) -> str:
    """``read_bounded`` as UTF-8, every line ended by a newline alone. Raises ValueError, with the
    path, for other bytes."""
    try:
        text = read_bounded(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")
