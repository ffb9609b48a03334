"""TLS: the certificate that the server shows, and those that it wants to see."""

from __future__ import annotations

import ssl
from typing import Any

from sglang.srt.config import EdgeConfig


def options(edge: EdgeConfig) -> dict[str, Any]:
    """Arguments for uvicorn.Config; none without a certificate.

    Read here once, before a model is. Raises ValueError, naming flag and file.
    """
    if not edge.ssl_certfile:
        for name in ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"):
            if getattr(edge, name):
                raise ValueError(f"--{name.replace('_', '-')} needs --ssl-certfile")
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = edge.ssl_keyfile or None
    files = f"--ssl-certfile {edge.ssl_certfile}" + (f" --ssl-keyfile {key}" if key else "")
    try:
        # Without a password here OpenSSL would ask the terminal.
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
