"""A Python interpreter that is up already and forks one sandbox after another (see `sandbox_fork.py`).

Usage: `python -S -B zygote.py SOCKET`, with the right to mount, or to make a user namespace that has it.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Note which modules a plain interpreter has, then load the rest."""
    bare = frozenset(sys.modules)
    return int(__import__("sandbox_fork").main(int(sys.argv[1]), bare))


if __name__ == "__main__":
    sys.exit(main())
