"""Fetch: reads images and videos from the URLs of requests, only from public addresses.

A request must not make the server read resources that only the server can reach: the metadata
service of a cloud, other machines of its network, itself. So a host's name is resolved once, *all*
its addresses must be public, and the connection goes to the verified address. A second resolution
of the name (DNS rebinding) has no effect. A redirect is verified like a new URL. A URL that two
parsers might read differently is refused.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from sglang.srt.core.version import __version__
from sglang.srt.requests.media_input.name_lookups import LookupsBusy, NameLookups

REDIRECTS = 3
LOOKUPS, SHARE = 256, 64  # simultaneous lookups, and those of one tenant; some outlive fetches
CHUNK = 1 << 16
LATE = "it took too long (--media-fetch-timeout)"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\.?\Z")
_NOT_PUBLIC_V4 = tuple(map(ipaddress.IPv4Network, (
    "0.0.0.0/8",          # this network
    "10.0.0.0/8",         # private
    "100.64.0.0/10",      # shared by a provider's customers; metadata of Alibaba's cloud
    "127.0.0.0/8",        # this machine
    "168.63.129.16/32",   # the machine's own host, in Azure
    "169.254.0.0/16",     # this link; metadata of most clouds
    "172.16.0.0/12",      # private
    "192.0.0.0/24",       # protocol assignments; metadata of Oracle's cloud
    "192.0.2.0/24",       # documentation
    "192.31.196.0/24",    # AS112
    "192.52.193.0/24",    # relays of multicast
    "192.88.99.0/24",     # relays to 6to4, gone since 2015
    "192.168.0.0/16",     # private
    "192.175.48.0/24",    # AS112
    "198.18.0.0/15",      # benchmarks
    "198.51.100.0/24",    # documentation
    "203.0.113.0/24",     # documentation
    "224.0.0.0/4",        # multicast
    "240.0.0.0/4",        # reserved, and broadcast
)))  # fmt: skip
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(map(ipaddress.IPv6Network, (
    "2001::/23",          # protocol assignments: Teredo, benchmarks, ORCHID
    "2001:db8::/32",      # documentation
    "2002::/16",          # 6to4, which embeds any IPv4 address
    "2620:4f:8000::/48",  # AS112
    "3fff::/20",          # documentation
)))  # fmt: skip
"""IANA's special-purpose addresses, and those of clouds' own services. The module has its own table
because the results of ``ipaddress.is_global`` differ between releases of Python. Only 2000::/3 is
public in IPv6; this excludes addresses that embed IPv4 (::ffff:0:0/96, 64:ff9b::/96)."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_LOOKUPS = NameLookups(LOOKUPS, SHARE)


class Fetch(NamedTuple):
    """Limits of a fetch.

    ``hosts``: the allowed hosts; empty: any host with public addresses. ``most``: bytes of the
    body. ``seconds``: total time, redirects and name lookups included. ``owner``: tenant whose
    share of lookups the fetch uses.
    """

    hosts: Collection[str]
    most: int
    seconds: float
    owner: str = ""


def fetch(url: str, rules: Fetch) -> bytes:
    """Return the body of the answer to a GET request. Blocks. Raises ValueError with the reason."""
    deadline = time.monotonic() + rules.seconds
    for _ in range(REDIRECTS + 1):
        parts = verified(url, rules.hosts)
        try:
            body, location = _get(parts, rules, deadline)
        except (OSError, http.client.HTTPException) as error:
            waited = isinstance(error, LookupsBusy)
            late = time.monotonic() >= deadline and not waited
            why = LATE if late else error or "no answer"
            raise ValueError(f"{_shown(parts)} cannot be fetched: {why}.") from error
        if body is not None:
            return body
        url = urljoin(url, location)
    raise ValueError(
        f"{_shown(parts)} is reached by more than {REDIRECTS} redirects; give the final URL."
    )


def verified(url: str, hosts: Collection[str]) -> SplitResult:
    """Return the parts of an unambiguous URL of an allowed host. Raises ValueError."""
    if not url.isascii() or not url.isprintable() or set(url) & set(" \\"):
        raise ValueError("the URL has a space, a backslash, or characters that are to be escaped.")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"the URL cannot be read: {error}.") from error
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"the URL's scheme is {parts.scheme[:20]!r}; http and https are fetched.")
    if "@" in parts.netloc:
        raise ValueError("the URL has a name before its host (an @); remove that.")
    host = parts.hostname or ""
    if not (_HOST.match(host) or _literal(host)):
        raise ValueError(f"the URL's host {host[:80]!r} is no name of a host.")
    if hosts and host.rstrip(".") not in hosts:
        raise ValueError(f"{host[:80]!r} is not among the hosts in --allowed-media-domains.")
    return parts


def public(address: Address) -> bool:
    """Whether an address is public in the internet, and embeds no other address."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return address in _GLOBAL_V6 and not any(address in network for network in _NOT_PUBLIC_V6)


def resolved(
    host: str, port: int, deadline: float, lookups: NameLookups = _LOOKUPS, owner: str = ""
) -> str:
    """Return the address to connect to. Raises ValueError for an address that is not public,
    OSError if there is none, TimeoutError at the deadline."""
    literal = _literal(host)
    addresses = [literal] if literal else lookups.addresses(host, port, deadline, owner)
    for address in addresses:
        if not public(ipaddress.ip_address(address)):
            raise ValueError(f"{host[:80]!r} is at an address that is not public; send a data URL.")
    if not addresses:
        raise OSError("it has no address")
    return addresses[0]


def _literal(host: str) -> str:
    """Return the host if it is a literal IP address; "" if it is a name."""
    try:
        return str(ipaddress.ip_address(host)).partition("%")[0]
    except ValueError:
        return ""


def _get(parts: SplitResult, rules: Fetch, deadline: float) -> tuple[bytes | None, str]:
    """Return the body and "", or None and the target of a redirect."""
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    address = resolved(host, port, deadline, owner=rules.owner)
    connection = PinnedConnection(host, port, address, secure, deadline)
    try:
        target = parts.path or "/"
        headers = {
            "Host": parts.netloc, "User-Agent": f"sglang/{__version__}", "Accept": "*/*",
            "Accept-Encoding": "identity", "Connection": "close",
        }  # fmt: skip
        connection.request("GET", f"{target}?{parts.query}" if parts.query else target,
                           headers=headers)  # fmt: skip
        answer = connection.getresponse()
        connection.hurry()
        if answer.status in (301, 302, 303, 307, 308) and answer.getheader("Location"):
            return None, answer.getheader("Location") or ""
        if answer.status != 200:
            raise ValueError(f"{_shown(parts)} answers {answer.status}; give an existing URL.")
        return _body(connection, answer, parts, rules.most), ""
    finally:
        connection.end()


def _body(
    connection: PinnedConnection, answer: http.client.HTTPResponse, parts: SplitResult, most: int
) -> bytes:
    found = bytearray()
    while True:
        some = answer.read1(CHUNK)
        connection.hurry()  # raises at the deadline, where a cut reply would look whole
        if not some:
            return bytes(found)
        found += some
        if len(found) > most:
            raise ValueError(f"{_shown(parts)} has more than {most} bytes (--max-media-bytes).")


class PinnedConnection(http.client.HTTPConnection):
    """Connection to one verified address, even if the host's name now resolves to another one. The
    connection is shut down at a deadline: a socket's timeout is not enough, because it limits one
    read, and a header or a handshake takes many."""

    def __init__(self, host: str, port: int, address: str, secure: bool, deadline: float) -> None:
        super().__init__(host, port)
        self._address, self._secure, self._deadline = address, secure, deadline
        self._open: socket.socket | None = None  # http.client may drop ``sock`` before the body
        self._timer: threading.Timer | None = None

    def connect(self) -> None:
        made = socket.create_connection((self._address, self.port), self._left())
        self.sock = self._open = made
        if self._secure:
            context = ssl.create_default_context()
            made = context.wrap_socket(
                made, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock = self._open = made
        self.hurry()
        self._timer = threading.Timer(self._left(), self._cut)
        self._timer.daemon = True
        self._timer.start()
        if isinstance(made, ssl.SSLSocket):
            made.do_handshake()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.close()

    def _cut(self) -> None:
        if self._open is not None:
            with suppress(OSError):  # the connection is closed already
                # Not SSLSocket.shutdown: it would remove the SSL object that another thread reads.
                socket.socket.shutdown(self._open, socket.SHUT_RDWR)

    def hurry(self) -> None:
        """Limit the next socket operations to the remaining time. Raises TimeoutError."""
        left = self._left()
        if self.sock is not None:
            self.sock.settimeout(left)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(LATE)
        return left


def _shown(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc}{parts.path}"[:200]
