"""`torchrun … -m agentrl.trainer.fsdp_sft_trainer key=value …`: verl's SFT command, which is `agentrl sft` here."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence

_OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def sft_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str] | None:
    """The arguments of `agentrl sft` for one of torchrun's processes; None: another process does the work.

    `agentrl sft` starts its ranks itself, so that the first process is enough. `--nproc_per_node=2`, and a size per
    machine that the command gives too, become::

        trainer.n_gpus_per_node=8   ->   trainer.n_gpus_per_node=8 trainer.n_gpus_per_node=2     the last one counts
    """
    if "LOCAL_WORLD_SIZE" not in environment:
        return list(arguments)
    if environment.get("RANK", "0") != "0":
        return None
    ranks, local = int(environment.get("WORLD_SIZE", "1")), int(environment["LOCAL_WORLD_SIZE"])
    return [*arguments, f"trainer.n_gpus_per_node={local}", f"trainer.nnodes={max(1, ranks // local)}"]


def main() -> None:
    """Run `agentrl sft` in the first of torchrun's processes."""
    arguments = sft_arguments(sys.argv[1:], os.environ)
    if arguments is None:
        return
    ranks = os.environ.get("WORLD_SIZE", "1")
    for name in [*_OF_TORCHRUN, *(name for name in os.environ if name.startswith("TORCHELASTIC_"))]:
        os.environ.pop(name, None)
    sys.stderr.write(f"note: this is `agentrl sft` here, which starts its ranks ({ranks}) by itself\n")
    # By name: the command line lies above the trainer.
    importlib.import_module("agentrl.cli").main(["sft", *arguments])


if __name__ == "__main__":
    main()
