"""HttpProxy: the proxy that the environment names for a URL, and a connection through it.

``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY`` are read as ``urllib`` does: lower case too, and
the system's settings where it has any. A server on this machine is always reached directly.
"""

from __future__ import annotations

import base64
import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

PORT = 8080  # where a proxy's URL has none


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
        """Headers that a request to the proxy has besides those of the server."""
        return [("Proxy-Authorization", self.credentials)] if self.credentials else []

    def tunnel(self, connection: socket.socket, host: str, port: int) -> None:
        """Have the proxy connect ``connection`` to a server (RFC 9110, section 9.3.6). Raises
        OSError where it does not."""
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
                # A byte at a time: what follows the answer is the server's.
                http.receive_data(connection.recv(1))
        except h11.RemoteProtocolError as error:
            raise OSError(f"the proxy {self.host}:{self.port} answers no HTTP: {error}") from error
        if not isinstance(event, h11.Response) or not 200 <= event.status_code < 300:
            status = event.status_code if isinstance(event, h11.Response) else "nothing"
            raise OSError(f"the proxy {self.host}:{self.port} answers {status}")


def proxy_of(scheme: str, host: str) -> HttpProxy | None:
    """The proxy for requests to a host; None: they go there directly. Raises ValueError where the
    environment names one that speaks no HTTP."""
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
    """Return whether only this machine is reached by a name or an address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
