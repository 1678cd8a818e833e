"""`python -m agentrl.trainer.main_eval --config evaluation.yaml key=value …`: the same as `agentrl eval`."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    # Imported by name: the command line is above the trainer.
    importlib.import_module("agentrl.cli").main(["eval", *sys.argv[1:]])
