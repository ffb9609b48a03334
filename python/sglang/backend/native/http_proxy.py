"""HttpProxy: the proxy that the environment names for a URL, and a connection through it.

``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY`` are read as by ``urllib``: also in lower case, and
from the system's settings, if any. Connections to this machine never use a proxy.
"""

from __future__ import annotations

import base64
import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

PORT = 8080  # default port of a proxy


@dataclass(frozen=True)
class HttpProxy:
    """An HTTP proxy between this process and a server.

    Attributes:
        credentials: value of Proxy-Authorization; "" for none.
    """

    host: str
    port: int
    credentials: str = ""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Headers that a request to the proxy has in addition to the server's."""
        return [("Proxy-Authorization", self.credentials)] if self.credentials else []

    def tunnel(self, connection: socket.socket, host: str, port: int) -> None:
        """Make the proxy connect ``connection`` to a server (RFC 9110, section 9.3.6). Raises
        OSError if the proxy refuses."""
        import h11

        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        http = h11.Connection(h11.CLIENT)
        headers = [("Host", name), *self.headers]
        connection.sendall(
            http.send(h11.Request(method="CONNECT", target=name, headers=headers))
            + http.send(h11.EndOfMessage())
        )
        try:
            while (event := http.next_event()) is h11.NEED_DATA:
                # One byte at a time, because bytes after the answer belong to the server.
                http.receive_data(connection.recv(1))
        except h11.RemoteProtocolError as error:
            raise OSError(f"the proxy {self.host}:{self.port} answers no HTTP: {error}") from error
        if not isinstance(event, h11.Response) or not 200 <= event.status_code < 300:
            status = event.status_code if isinstance(event, h11.Response) else "nothing"
            raise OSError(f"the proxy {self.host}:{self.port} answers {status}")


def proxy_of(scheme: str, host: str) -> HttpProxy | None:
    """Return the proxy for requests to a host; None: connect directly. Raises ValueError if the
    environment names a proxy that is not an http:// one."""
    address = getproxies().get(scheme) or getproxies().get("all")
    if not address or is_loopback(host) or proxy_bypass(host):
        return None
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(
            f"the environment names the proxy {parts.scheme}://{parts.hostname} for {host}; give "
            "an http:// one, or add the host to NO_PROXY"
        )
    credentials = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        credentials = "Basic " + base64.b64encode(pair.encode()).decode()
    return HttpProxy(parts.hostname, parts.port or PORT, credentials)


def is_loopback(host: str) -> bool:
    """Return True if a host name or address refers to this machine only."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
