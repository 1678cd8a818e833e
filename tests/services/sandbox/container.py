"""Runs a command as in a container: as another user, with fewer capabilities, with calls that fail.

Usage: `python container.py [--user N] [--no-capabilities] [--drop NUMBER] [--refuse NAME...] -- COMMAND`. What it sees
is what runtimes of containers do: a user namespace that maps one user, dropped capabilities, a seccomp filter.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os

import pyseccomp

from agentrl.services.sandbox.guest import linux_calls

PR_CAPBSET_DROP = 24
NAMESPACES = "namespaces"
NAMESPACE_FLAGS = (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
CALLS = {NAMESPACES: ("unshare", "setns", "mount", "pivot_root", "umount2"), "landlock": ("landlock_create_ruleset",)}


def refuse(what: list[str]) -> None:
    """As Docker's filter does: namespaces are not permitted; a kernel without Landlock does not know its calls."""
    made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in what:
        error = errno.EPERM if name == NAMESPACES else errno.ENOSYS
        for call in CALLS[name]:
            made.add_rule(pyseccomp.ERRNO(error), call)
    if NAMESPACES in what:
        for flag in NAMESPACE_FLAGS:
            made.add_rule(pyseccomp.ERRNO(errno.EPERM), "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
        made.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    made.load()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--user", type=int)
    parser.add_argument("--no-capabilities", action="store_true")
    parser.add_argument("--drop", type=int)
    parser.add_argument("--refuse", nargs="*", default=[], choices=CALLS)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    if given.user is not None:
        linux_calls.own_user_namespace(given.user)
    if given.no_capabilities:
        linux_calls.drop_bounding_set()
    if given.drop is not None:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, given.drop, 0, 0, 0)
    refuse(given.refuse)
    os.execv(given.command[0], given.command)


if __name__ == "__main__":
    main()
