"""CURVE keys: files with which an engine and its fronts (servers) authenticate each other.

``sglang engine-keys DIR`` writes two files that only their owner can read. "engine.key" has the
engine's key pair and the public keys of the admitted fronts. "front.key" has a front's key pair and
the engine's public key. Keys are in Z85, 40 characters (ZeroMQ RFC 26 and 32).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import zmq
from sglang.srt.config.listening import is_loopback

ENGINE_FILE, FRONT_FILE = "engine.key", "front.key"
KEY_CHARACTERS = 40


class EngineKeys(
    msgspec.Struct, frozen=True, tag="engine", tag_field="role", forbid_unknown_fields=True
):
    """Keys of an engine. ``fronts``: public keys of the admitted fronts."""

    public: str
    secret: str
    fronts: tuple[str, ...]

    def apply(self, socket: Any) -> None:
        """Enable encryption on a ROUTER socket; a ZAP handler must admit the clients."""
        socket.curve_secretkey, socket.curve_publickey = self.secret.encode(), self.public.encode()
        socket.curve_server = True


class FrontKeys(
    msgspec.Struct, frozen=True, tag="front", tag_field="role", forbid_unknown_fields=True
):
    """Keys of a front. ``engine``: public key of the engines that it connects to."""

    public: str
    secret: str
    engine: str

    def apply(self, socket: Any) -> None:
        """Enable encryption on a DEALER socket."""
        socket.curve_secretkey, socket.curve_publickey = self.secret.encode(), self.public.encode()
        socket.curve_serverkey = self.engine.encode()


def write_keys(directory: Path) -> tuple[Path, Path]:
    """Create both key files and return their paths. Raises OSError; FileExistsError if one of them
    exists."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = directory / ENGINE_FILE, directory / FRONT_FILE
    for file in files:
        if file.exists():
            raise FileExistsError(f"{file} is there already; give another directory, or remove it")
    (engine, engine_secret), (front, front_secret) = (
        [key.decode() for key in zmq.curve_keypair()] for _ in range(2)
    )
    _write(files[0], EngineKeys(engine, engine_secret, (front,)))
    _write(files[1], FrontKeys(front, front_secret, engine))
    return files


def _write(file: Path, keys: EngineKeys | FrontKeys) -> None:
    data = msgspec.json.format(msgspec.json.encode(keys), indent=2) + b"\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def read_engine_keys(path: str) -> EngineKeys:
    """Read an engine's key file. Raises OSError, and ValueError for an invalid file."""
    keys = _read(path)
    if not isinstance(keys, EngineKeys):
        raise ValueError(f"{path} has the keys of a front; give {ENGINE_FILE}")
    return keys


def read_front_keys(path: str) -> FrontKeys:
    """Read a front's key file. Raises OSError, and ValueError for an invalid file."""
    keys = _read(path)
    if not isinstance(keys, FrontKeys):
        raise ValueError(f"{path} has the keys of an engine; give {FRONT_FILE}")
    return keys


def _read(path: str) -> EngineKeys | FrontKeys:
    with Path(path).expanduser().open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        data = file.read(1 << 20)
    if mode & 0o077:
        raise ValueError(f"{path} has mode {mode:04o}: others may read it; chmod 600 {path}")
    try:
        keys = msgspec.json.decode(data, type=EngineKeys | FrontKeys)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no key file ({error}); make one: sglang engine-keys") from None
    own = (keys.public, keys.secret)
    for key in own + (keys.fronts if isinstance(keys, EngineKeys) else (keys.engine,)):
        if not _is_key(key):
            raise ValueError(
                f"{path} has a key of {len(key)} characters that is no Z85 of "
                f"{KEY_CHARACTERS}; make new ones: sglang engine-keys"
            )
    return keys


def _is_key(key: str) -> bool:
    from zmq.utils import z85

    try:
        return len(key) == KEY_CHARACTERS and len(z85.decode(key)) == 32
    except (KeyError, ValueError, UnicodeEncodeError):
        return False


def verify_address(address: str, flag: str, keys: EngineKeys | FrontKeys | None) -> None:
    """Raise ValueError for an invalid address, and without keys for an address that other machines
    can reach. ``flag``: name of the address in messages."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = None, None, None
    if parts is None or parts.scheme != "tcp" or not host or port is None or parts.path:
        raise ValueError(f"{flag} is {address!r}; give tcp://HOST:PORT")
    if keys is None and not is_loopback(host):
        raise ValueError(
            f"{flag} is {address}: other machines reach it, and without keys anybody there could "
            "use the engine; make keys with 'sglang engine-keys DIR' and give --curve-keys FILE"
        )
