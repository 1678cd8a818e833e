"""`python -m agentrl.trainer.main_ppo key=value ...`: the same as `agentrl train key=value ...`."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Run the command."""
    # By name: this file is a command's other name, and the trainer itself knows nothing of commands.
    importlib.import_module("agentrl.cli").main(["train", *sys.argv[1:]])


if __name__ == "__main__":
    main()
