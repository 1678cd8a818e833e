"""The user numbers that a server can give its runs: in a container only some exist, or none but its own."""

from __future__ import annotations

import os
from pathlib import Path

UIDS_PER_SERVER = 1000
_FIRST_UID = 1_000_000
_FIRST_IN_CONTAINER = 10_000
_NEEDED = {"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7}


def find_users() -> tuple[range | None, str]:
    """User numbers for the runs of this server, and why there are none; two servers on a machine have different ones.

    A container without privileges of its own has a line such as `0 1000 1` in /proc/self/uid_map: its root is user 1000
    of the machine, and there is no other user that a run could be. With `0 100000 65536` there are 65536.
    """
    if os.geteuid() != 0:
        return None, "this server is not root's"
    held = _capabilities()
    missing = [name for name, number in _NEEDED.items() if not held >> number & 1]
    if missing:
        return None, f"this server lacks {', '.join(missing)}"
    if _read("/proc/self/setgroups").strip() == "deny":
        return None, "this user namespace may not set groups"
    ends = [min(_end(_read(f"/proc/self/{name}"), first) for name in ("uid_map", "gid_map")) for first in _STARTS]
    for first, end in zip(_STARTS, ends, strict=True):
        places = min((end - first) // UIDS_PER_SERVER, 10_000)
        if places > 0:
            start = first + os.getpid() % places * UIDS_PER_SERVER
            return range(start, start + UIDS_PER_SERVER), ""
    return None, "this user namespace maps too few users (see /proc/self/uid_map)"


_STARTS = (_FIRST_UID, _FIRST_IN_CONTAINER)


def _end(id_map: str, first: int) -> int:
    """The end of the numbers without a gap from `first` on; `first` itself when it is not mapped."""
    for line in id_map.splitlines():
        inside, _, count = map(int, line.split())
        if inside <= first < inside + count:
            return inside + count
    return first


def _capabilities() -> int:
    fields = dict(line.split(":", 1) for line in _read("/proc/self/status").splitlines() if ":" in line)
    return int(fields.get("CapEff", "0"), 16)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""
