"""Memory of ranks that share one long row: peak of each process, with the row read whole and by two ranks.

Each rank trains one row of 16,384 tokens on the CPU (forward, backward, no optimizer step) with a model of real width
and few layers. What grows with the row (activations, logits) is halved by a second rank; weights are sharded too.

    python benchmarks/long_rows.py [--tokens 16384] [--layers 2] [--hidden 896]
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.testing.models import build_tiny_model
from agentrl.workers.attention import choose_attention
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.loading import load_causal_lm
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.micro_batches import RowLayout
from agentrl.workers.token_nets import PolicyNet
from agentrl.workers.token_stats import EntropyMode

MIB = 2**20


def main() -> None:
    """Measure with one rank that reads the whole row, then with two that share it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16_384, help="of the row")
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    parser.add_argument("--hidden", type=int, default=896, help="width of the model, a multiple of 64")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = build_tiny_model(
            Path(folder, "model"),
            hidden_size=args.hidden,
            intermediate_size=args.hidden * 5,
            num_hidden_layers=args.layers,
            num_attention_heads=args.hidden // 64,
            num_key_value_heads=2,
            vocab_size=8_192,
            max_position_embeddings=args.tokens,
        )
        for ranks in (1, 2):
            sys.stdout.flush()
            children = [
                start(rank, ranks, model, args.tokens, Path(folder, f"meeting_{ranks}")) for rank in range(ranks)
            ]
            if any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children):
                sys.exit("a rank failed")


def start(rank: int, ranks: int, model: Path, tokens: int, meeting: Path) -> int:
    """Fork a rank; its process id."""
    if (child := os.fork()) == 0:
        try:
            measure(rank, ranks, model, tokens, meeting)
        finally:
            sys.stdout.flush()
            os._exit(0 if sys.exc_info()[0] is None else 1)
    return child


def measure(rank: int, ranks: int, folder: Path, tokens: int, meeting: Path) -> None:
    """Join the other ranks, train the row once, and print this rank's peak."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    store = dist.FileStore(str(meeting), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(minutes=10))
    config = RunConfig()
    policy = config.actor_rollout_ref
    policy.model.path = str(folder)
    policy.actor.fsdp_config.ulysses_sequence_parallel_size = ranks
    attention = choose_attention(torch.device("cpu"), torch.float32, remove_padding=True, sp=ranks)
    net = PolicyNet(load_causal_lm(policy.model, torch.float32, attention), 1.0)
    model = FSDPModel(net, torch.device("cpu"), policy.actor.fsdp_config, policy.actor.optim)
    before, began = psutil.Process().memory_info().rss, time.perf_counter()
    micros = RowLayout(row_of(tokens), "loss_mask").micro_batches(None, MicroLimits(tokens, packed=ranks > 1))
    for _, (log_probs, _) in model.passes(micros, EntropyMode.NONE):
        torch.autograd.backward(-log_probs.sum() / tokens)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"sp {ranks}, rank {rank}: {before / MIB:,.0f} MiB before, peak {peak / MIB:,.0f} MiB "
        f"(+{(peak - before) / MIB:,.0f}), {time.perf_counter() - began:.0f} s"
    )
    dist.destroy_process_group()


def row_of(tokens: int) -> DataProto:
    """One row: a prompt of 256 tokens, the rest is trained on."""
    ids = torch.randint(0, 8_192, (1, tokens), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(1, tokens - 256, dtype=torch.long)
    columns = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "responses": ids[:, 256:]}
    return DataProto({**columns, "loss_mask": mask, "response_mask": mask})


if __name__ == "__main__":
    main()
