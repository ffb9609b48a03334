"""Values of ``format`` as patterns, after the RFCs that JSON Schema names.

Where a pattern cannot say all of it (a leap second, a quoted local part of an address), it matches
less, never more.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache

from sglang.srt.grammar.schema.string_patterns import Pattern, pattern_of

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    f"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_CLOCK})"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_HEX = "[0-9a-fA-F]{1,4}"
_IPV6 = (
    f"(?:(?:{_HEX}:){{7}}{_HEX}|(?:{_HEX}:){{1,7}}:"
    + "".join(f"|(?:{_HEX}:){{1,{7 - n}}}(?::{_HEX}){{1,{n}}}" for n in range(1, 6))
    + f"|{_HEX}:(?::{_HEX}){{1,6}}|:(?::{_HEX}){{1,7}}|::)"
)
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_DAYS, _CLOCKS = "[0-9]+D", "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DATES = f"(?:[0-9]+Y(?:[0-9]+M(?:{_DAYS})?)?|[0-9]+M(?:{_DAYS})?|{_DAYS})"
_UCS = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\U00010000-\U0001fffd"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_VARIABLE = r"(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2}))*"
_VARIABLE += r"(?::[1-9][0-9]{0,3}|\*)?"


def _uri(more: str, relative: bool) -> str:
    """RFC 3986 and, with ``more`` characters, RFC 3987."""
    plain = rf"[a-zA-Z0-9._~!$&'()*+,;={more}-]|%[0-9a-fA-F]{{2}}"
    part = f"(?:{plain}|[:@])"
    host = rf"(?:\[{_IPV6}\]|(?:{plain})*)"
    authority = f"//(?:(?:{plain}|:)*@)?{host}(?::[0-9]*)?(?:/{part}*)*"
    tail = rf"(?:\?(?:{part}|[/?])*)?(?:#(?:{part}|[/?])*)?"
    rooted = f"/(?:{part}+(?:/{part}*)*)?"
    full = rf"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{authority}|{rooted}|{part}+(?:/{part}*)*)?{tail}"
    if not relative:
        return full
    first = f"(?:{plain}|@)+(?:/{part}*)*"
    return f"(?:{full}|(?:{authority}|{rooted}|{first})?{tail})"


_PATTERNS = {
    "byte": "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",  # from OpenAPI
    "date": _DATE,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DATES}(?:{_CLOCKS})?|{_CLOCKS}|[0-9]+W)",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_HOST}",
    "hostname": _HOST,
    "idn-email": rf"{_ATOM}(?:\.{_ATOM})*@{_HOST}",
    "idn-hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "iri": _uri(_UCS, False),
    "iri-reference": _uri(_UCS, True),
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "time": _TIME,
    "uri": _uri("", False),
    "uri-reference": _uri("", True),
    "uri-template": rf"(?:[^\x00- \"'%<>\\^`{{|}}\x7f]|%[0-9a-fA-F]{{2}}"
    rf"|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*",
    "uuid": "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    **{
        f"uuid{n}": f"[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{n}[0-9a-fA-F]{{3}}"
        "-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
        for n in range(1, 9)
    },
}
LENGTHS = {"hostname": 253, "idn-hostname": 253, "email": 254, "idn-email": 254}
HINTS = frozenset({"binary", "multiline", "password", "text", "textarea"})  # ways to show a field
NAMES = tuple(sorted(_PATTERNS))
# Standard formats that are not enforced.
REFUSED = frozenset({"regex"})
ALIASES = {"datetime": "date-time", "timestamp": "date-time", "url": "uri", "mail": "email",
           "ip": "ipv4", "ip-address": "ipv4", "host-name": "hostname", "guid": "uuid",
           "base64": "byte"}  # fmt: skip


def meant(name: str) -> str | None:
    """The format that a name is a slip for, or None: then it is a name of the author's own, which
    no draft gives a meaning."""
    plain = name.lower().replace("_", "-")
    if plain in _PATTERNS or plain in REFUSED:
        return plain
    if plain in ALIASES:
        return ALIASES[plain]
    close = get_close_matches(plain, _PATTERNS, n=1, cutoff=0.8)
    return close[0] if close else None


@lru_cache(maxsize=64)
def format_pattern(name: str) -> Pattern | None:
    """None for a format that is not known here."""
    source = _PATTERNS.get(name)
    return None if source is None else pattern_of(f"^(?:{source})$")
