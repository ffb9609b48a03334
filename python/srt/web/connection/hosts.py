"""Hosts: the names under which a server may be reached, and the sites whose pages may call it."""

from __future__ import annotations

import socket

from sglang.srt.config.listening import is_loopback
from sglang.srt.web.exchange.error_replies import ServerError
from starlette.types import Scope


class Hosts:
    """Refuses requests that a web page makes a browser send without the user's intent.

    A page of any site may make a browser send requests to this machine. ``Origin`` of such a
    request names the page's site. A site may also let its own name resolve to this machine (DNS
    rebinding). Its page then has the same origin, but ``Host`` is the site's name.
    """

    def __init__(self, bound: str, allowed: str, origins: str) -> None:
        """``bound``: the address that the server listens on. ``allowed``, ``origins``: values of
        ``--allowed-hosts`` and ``--cors-allow-origins``, separated by commas."""
        self.origins = [origin.lower().rstrip("/") for origin in _listed(origins)]
        self._names = {name.lower() for name in _listed(allowed)}
        self._any = "*" in self._names or (not self._names and not is_loopback(bound))
        if is_loopback(bound):
            own = socket.gethostname().lower()
            self._names |= {bound.lower(), own, f"{own}.local"}

    def verify(self, scope: Scope) -> None:
        """Raise ServerError (400, 403) if this request must not be answered."""
        headers = scope["headers"]
        found = {name: value.decode("latin-1") for name, value in headers if name in _READ}
        count = sum(name == b"host" for name, _ in headers)
        if count > 1 or (not count and scope["http_version"] != "1.0"):
            raise ServerError("malformed_request", "Send one Host header.")
        host = found.get(b"host", "").lower()
        if count and not self._known(_name(host)):
            raise ServerError(
                "forbidden",
                f"Host {host[:100]!r} is not a name of this server; add it with --allowed-hosts.",
            )
        origin = found.get(b"origin", "").lower()
        if origin and not self._may(origin, host):
            raise ServerError(
                "forbidden",
                f"A page of {origin[:100]!r} may not call this server; add its origin with "
                "--cors-allow-origins.",
            )
        if not origin and found.get(b"sec-fetch-site") in ("cross-site", "same-site"):
            self._verify_link(scope["path"], found.get(b"sec-fetch-mode", ""))

    def _known(self, name: str) -> bool:
        if self._any or name in self._names or is_loopback(name):
            return True
        parent = name.partition(".")[2]
        return bool(parent) and f"*.{parent}" in self._names

    def _may(self, origin: str, host: str) -> bool:
        """Whether an origin has the same host and port as ``host``, or is listed. The scheme may
        differ, because a proxy may have ended TLS."""
        scheme, _, place = origin.partition("://")
        own = {host, host.removesuffix(_PORTS.get(scheme, ":"))}
        return (bool(place) and place in own) or "*" in self.origins or origin in self.origins

    @staticmethod
    def _verify_link(path: str, mode: str) -> None:
        """Raise ServerError for a request of another site, unless it is a link to a page. A link
        must not flush the cache."""
        if mode != "navigate" or path == "/flush_cache":
            raise ServerError("forbidden", "A page of another site may not make this request.")


_READ = (b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode")
_PORTS = {"http": ":80", "https": ":443"}


def _listed(text: str) -> list[str]:
    """Return the parts of a value that is separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _name(host: str) -> str:
    """Return ``host`` without its port and without the brackets of IPv6."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")
