"""Host memory of a rank while its model loads and while a checkpoint is written, beside the way that loads it whole.

    python benchmarks/load_memory.py [--model FOLDER] [--ranks 2,4]

Anonymous memory of each process (`RssAnon`: pages of mapped files do not count), the peak above what the process had
before, for a frozen model in float32. A shard is the model's float32 bytes divided by the ranks. Without `--model`, a
random one of SmolLM2-135M's shape is made. Writes a table; `--json FILE` the numbers.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from agentrl.config.actor import FSDPConfig, ModelConfig
from agentrl.testing.models import byte_tokenizer
from agentrl.workers import tensor_files
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.hf_folder import BUCKET_BYTES, HFFolder
from agentrl.workers.loading import load_pretrained, start_causal_lm
from agentrl.workers.settling import settle
from agentrl.workers.shards import save_shards
from agentrl.workers.token_nets import PolicyNet

MIB = 2**20
PHASES = ("load", "look", "save shards", "save folder", "stage folder")


def anonymous() -> int:
    """Bytes of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not tell RssAnon")


def peak_of(work: Callable[[], Any]) -> tuple[Any, int]:
    """What `work` returns, and the most memory that it had above what was there before."""
    ctypes.CDLL(None).malloc_trim(0)
    before, most, ended = anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.is_set():
            most = max(most, anonymous() - before)
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        result = work()
    finally:
        most = max(most, anonymous() - before)
        ended.set()
        thread.join()
    return result, most


def measure(config: ModelConfig, whole: bool, folder: Path) -> dict[str, int]:
    """Peaks of one rank by phase. A collective call."""

    def load() -> tuple[Any, FSDPModel]:
        if whole:
            lm, weights = load_pretrained(AutoModelForCausalLM, config, torch.float32), None
        else:
            lm, weights = start_causal_lm(config, torch.float32)
        return lm, FSDPModel(PolicyNet(lm, 1.0), torch.device("cpu"), FSDPConfig(), weights=weights)

    peaks: dict[str, int] = {}
    (lm, model), peaks["load"] = peak_of(load)
    _, peaks["look"] = peak_of(lambda: settle(model, lm, "sdpa", head_of=config.path))
    if not whole:
        _, peaks["save shards"] = peak_of(lambda: save_shards(folder / "shards", model, 0))
        _, peaks["save folder"] = peak_of(lambda: HFFolder(folder / "once", model, lm, config).write())
        _, peaks["stage folder"] = peak_of(lambda: HFFolder(folder / "behind", model, lm, config).stage()())
    else:
        _, peaks["save folder"] = peak_of(lambda: model.full_weights(lm))
    return peaks


def run_rank(rank: int, world: int, config: ModelConfig, whole: bool, folder: Path) -> None:
    """One process of a measurement; writes its peaks."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "meeting"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=300))
    dist.barrier()
    (folder / f"rank_{rank}.json").write_text(json.dumps(measure(config, whole, folder)))
    dist.destroy_process_group()


def spread(world: int, config: ModelConfig, whole: bool) -> list[dict[str, int]]:
    """The peaks of each rank."""
    with tempfile.TemporaryDirectory() as name:
        pids = []
        for rank in range(world):
            if (pid := os.fork()) == 0:
                try:
                    run_rank(rank, world, config, whole, Path(name))
                finally:
                    os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        return [json.loads((Path(name) / f"rank_{rank}.json").read_text()) for rank in range(world)]


def random_model(folder: Path) -> Path:
    """A model of SmolLM2-135M's shape, in bfloat16, in a process of its own: its memory must not be the ranks'."""
    if (pid := os.fork()) == 0:
        shape = LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            tie_word_embeddings=True,
        )
        AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
        os._exit(0)
    os.waitpid(pid, 0)
    return folder


def main() -> None:
    """Measure both ways on each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        path = Path(arguments.model or random_model(Path(made) / "model"))
        config, rows = ModelConfig(path=str(path)), []
        with torch.device("meta"):
            lm = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
        size = sum(parameter.numel() for parameter in lm.parameters()) * 4
        for world in map(int, arguments.ranks.split(",")):
            for whole in (True, False):
                ranks = spread(world, config, whole)
                most = {phase: max(rank[phase] for rank in ranks) for phase in PHASES if phase in ranks[0]}
                rows.append({"ranks": world, "whole": whole, "shard": size // world, **most})
                limit = 1.3 * size / world + tensor_files.PIECE_BYTES
                shown = "  ".join(f"{phase} {bytes_ / MIB:.0f}" for phase, bytes_ in most.items())
                way = "whole" if whole else "parts"
                print(
                    f"{world} ranks  {way}  shard {size / world / MIB:.0f}  {shown}  (load at most {limit / MIB:.0f})"
                )
    print(
        f"MiB above what the process had; a read is at most {tensor_files.PIECE_BYTES / MIB:.0f}, a bucket of a folder "
        f"{BUCKET_BYTES / MIB:.0f}"
    )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
