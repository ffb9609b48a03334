"""Listening: the address and the certificate that a server's settings name."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from sglang.srt.config import Config, EdgeConfig


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the address and does not listen yet. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine is reached by a name or an address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def exposed(host: str, config: Config) -> bool:
    """Whether other machines reach ``host``, an address or a name, and need no key to use it."""
    keyed = config.server.api_key or config.edge.api_keys_file or config.edge.ssl_ca_certs
    return not keyed and not is_loopback(host)


def tls_options(edge: EdgeConfig) -> dict[str, Any]:
    """Arguments for uvicorn.Config; none without a certificate.

    Read here once, before a model is. Raises ValueError, naming flag and file.
    """
    import ssl  # not before the engine process is started

    if not edge.ssl_certfile:
        for name in ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"):
            if getattr(edge, name):
                raise ValueError(f"--{name.replace('_', '-')} needs --ssl-certfile")
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = edge.ssl_keyfile or None
    files = f"--ssl-certfile {edge.ssl_certfile}" + (f" --ssl-keyfile {key}" if key else "")
    try:
        # OpenSSL would ask the terminal for a password that is not given here.
        context.load_cert_chain(edge.ssl_certfile, key, lambda: edge.ssl_keyfile_password)
        if edge.ssl_ca_certs:
            files = f"--ssl-ca-certs {edge.ssl_ca_certs}"
            context.load_verify_locations(edge.ssl_ca_certs)
    except (OSError, ValueError) as error:
        raise ValueError(f"{files}: {error}") from error
    return {
        "ssl_certfile": edge.ssl_certfile,
        "ssl_keyfile": key,
        "ssl_keyfile_password": edge.ssl_keyfile_password or None,
        "ssl_ca_certs": edge.ssl_ca_certs or None,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if edge.ssl_ca_certs else ssl.CERT_NONE,
    }
