"""`python -m agentrl.trainer.main_generation --config generation.yaml key=value …`: the same as `agentrl generate`."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    # Imported by name: the command line is above the trainer.
    importlib.import_module("agentrl.cli").main(["generate", *sys.argv[1:]])
