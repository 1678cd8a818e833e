"""The memory forecast of `agentrl plan` beside measured peaks of resident memory, on the CPU.

Each model takes one GRPO update with a KL to the reference in a process of its own, as `agentrl train` does it on one
rank: log-probs of actor and reference, then one optimizer step. `base` is what the process has before a model is
loaded. Prints peak, forecast and their ratio; ends with code 1 if one is off by more than 15 %.

    python benchmarks/memory_forecast.py [MODEL_FOLDER ...] [--threads N] [--tokens 1024]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from agentrl.config.root import RunConfig
from agentrl.placement.cluster import Cluster
from agentrl.placement.forecast import forecast_rank
from agentrl.placement.model_shape import find_shape
from agentrl.testing.models import build_tiny_model

MIB = 2**20
MADE = {
    "qwen2 of 39 million": {
        "family": "qwen2",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 32_000,
    },
    "qwen3_moe of 47 million": {
        "family": "qwen3_moe",
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 320,
        "vocab_size": 24_000,
    },
    "llama of 37 million": {
        "family": "llama",
        "hidden_size": 448,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 7,
        "num_key_value_heads": 7,
        "head_dim": 64,
        "vocab_size": 16_000,
        "tie_word_embeddings": False,
    },
}
"""Models that are built here, by name."""
TOLERANCE = 0.15


def config_of(model: str, tokens: int, *, checkpointing: bool) -> RunConfig:
    """A run of one rank whose micro-batches have this many tokens."""
    config = RunConfig()
    config.algorithm.adv_estimator = "grpo"
    config.data.max_prompt_length, config.data.max_response_length = tokens // 8, tokens // 8
    config.trainer.backend, config.trainer.device = "local", "cpu"
    policy = config.actor_rollout_ref
    policy.model.path, policy.actor.use_kl_loss = model, True
    policy.model.enable_gradient_checkpointing = checkpointing
    policy.actor.ppo_max_token_len_per_gpu = tokens
    policy.rollout.log_prob_max_token_len_per_gpu = policy.ref.log_prob_max_token_len_per_gpu = tokens
    return config


def measure(model: str, tokens: int, *, checkpointing: bool) -> float:
    """Take the update in this process; what its peak adds to the base, in bytes."""
    import agentrl.workers.actor_rollout_ref
    from agentrl.testing.batches import random_batch

    config = config_of(model, tokens, checkpointing=checkpointing)
    base = resident()
    batch = random_batch([(tokens // 8, tokens // 8)] * 8, find_shape(model).vocab - 8, seed=1)  # type: ignore[union-attr]
    actor = agentrl.workers.actor_rollout_ref.ActorRolloutRefWorker(config)
    actor.init_model(1)
    reference = agentrl.workers.actor_rollout_ref.ActorRolloutRefWorker(config, "ref")
    reference.init_model(1)
    actor.compute_log_prob(batch)
    reference.compute_ref_log_prob(batch)
    actor.update_actor(batch)
    return peak() - base


def resident() -> float:
    """Resident memory of this process now, once what is imported with a first model has been."""
    import psutil
    from transformers import AutoModelForCausalLM  # noqa: F401

    torch.zeros(1).backward  # noqa: B018
    return float(psutil.Process().memory_info().rss)


def peak() -> float:
    """Its largest until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def main() -> int:
    """Measure every model in its own process, or one of them in this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="folders of models, beside those that are built here")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", type=int, default=1024, help="of a micro-batch")
    parser.add_argument("--one", choices=("plain", "checkpointing"), help="measure the given model in this process")
    args = parser.parse_args()
    if args.one:
        torch.set_num_threads(args.threads)
        print(measure(args.models[0], args.tokens, checkpointing=args.one == "checkpointing"))
        return 0
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        made = {name: str(build_tiny_model(Path(folder, name), **sizes)) for name, sizes in MADE.items()}
        for name, model in {**made, **{Path(path).name: path for path in args.models}}.items():
            for way in ("plain", "checkpointing"):
                command = [sys.executable, __file__, model, "--one", way, "--tokens", str(args.tokens)]
                done = subprocess.run(
                    [*command, "--threads", str(args.threads)], check=True, capture_output=True, text=True
                )
                measured = float(done.stdout.split()[-1])
                config = config_of(model, args.tokens, checkpointing=way == "checkpointing")
                expected = forecast_rank(config, Cluster.parse("1x0"))
                worst = max(worst, abs(expected / measured - 1))
                print(
                    f"{name:26} {way:14} measured {measured / MIB:7.0f} MiB, forecast {expected / MIB:7.0f} MiB "
                    f"{expected / measured:5.2f}",
                    flush=True,
                )
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
