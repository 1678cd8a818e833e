"""Brings up the loopback device of a new network namespace; as a program, `python -S loopback.py`, of its own.

The program also gives its machine the name that code sees.
"""

from __future__ import annotations

import _socket
import fcntl
import sys


def bring_up() -> None:
    """Needs the right to configure the namespace's network."""
    set_flags, up = 0x8914, 1
    socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(socket.fileno(), set_flags, b"lo".ljust(16, b"\0") + up.to_bytes(2, sys.byteorder).ljust(24, b"\0"))
    socket.close()


if __name__ == "__main__":
    bring_up()
    _socket.sethostname("sandbox")
