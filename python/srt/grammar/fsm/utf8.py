"""UTF-8 as the automaton all states share: which code points a few first bytes may become.

The bytes of a character that is still open are one number, big-endian: 0xE2_82 is the begin of the
euro sign. 0 is the state between two characters. The code points that an open character may become
are one interval (RFC 3629: no surrogates, no overlong form, nothing above U+10FFFF).
"""

from __future__ import annotations

from functools import lru_cache

_TRUNCATED = "unexpected end of data"


def split(data: bytes) -> tuple[str, int] | None:
    """The whole characters of ``data`` and the open one after them; None where it is no prefix of
    UTF-8 text."""
    try:
        return data.decode(), 0
    except UnicodeDecodeError as error:
        if error.reason != _TRUNCATED:
            return None
        return data[: error.start].decode(), int.from_bytes(data[error.start :], "big")


def opened(partial: int) -> bytes:
    """The bytes of an open character."""
    return partial.to_bytes((partial.bit_length() + 7) // 8, "big")


def missing(partial: int) -> int:
    """The number of bytes that an open character still needs."""
    data = opened(partial)
    return (0 if not data else 2 if data[0] < 0xE0 else 3 if data[0] < 0xF0 else 4) - len(data)


@lru_cache(maxsize=1 << 12)
def span(partial: int) -> tuple[int, int]:
    """First and last code point that an open character may become.

    ``partial`` comes from ``split``, so that there is one.
    """
    data = opened(partial)
    need = missing(partial)
    lead = data[0] & (0x1F if len(data) + need == 2 else 0x0F if len(data) + need == 3 else 0x07)
    for byte in data[1:]:
        lead = lead << 6 | byte & 0x3F
    low, high = lead << 6 * need, (lead + 1 << 6 * need) - 1
    low = max(low, (0, 0, 0x80, 0x800, 0x10000)[len(data) + need])
    if low <= 0xD800 <= high:  # E and D: only the half below the surrogates
        high = 0xD7FF
    return low, min(high, 0x10FFFF)
