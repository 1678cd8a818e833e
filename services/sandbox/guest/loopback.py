"""Sets up a new network namespace: brings up its loopback device.

Buffers of its connections stay small: they are memory that no limit of a process counts.
"""

from __future__ import annotations

import _socket
import fcntl
import sys

_TCP_BUFFER = "4096 65536 262144"
"""Least, usual and most bytes."""


def bring_up() -> None:
    """Needs the right to configure the namespace's network."""
    set_flags, up = 0x8914, 1
    socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(socket.fileno(), set_flags, b"lo".ljust(16, b"\0") + up.to_bytes(2, sys.byteorder).ljust(24, b"\0"))
    socket.close()
    for name in ("tcp_rmem", "tcp_wmem"):
        try:
            with open(f"/proc/sys/net/ipv4/{name}", "w") as stream:
                stream.write(_TCP_BUFFER)
        except OSError:  # a container may show it read-only
            return
