"""Run a command with no network but this machine's own, where the kernel lets us.

    python offline.py COMMAND [ARGUMENT]...

The command runs in a network namespace whose one interface is loopback, and finds ``OFFLINE=1`` in
its environment. Where namespaces are not permitted it runs as it is, without ``OFFLINE``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


def cut() -> None:
    """Enter an empty network. Raises OSError where that is not permitted."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"{user} {user} 1")
    (own / "gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", 0)
        name, flags = struct.unpack("16sh22x", fcntl.ioctl(control, SIOCGIFFLAGS, request))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh22x", name, flags | IFF_UP))


def main() -> None:
    try:
        cut()
        os.environ["OFFLINE"] = "1"
    except OSError as error:
        os.environ.pop("OFFLINE", None)
        print(f"the network stays: {error}", file=sys.stderr)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
