"""Peak memory of one GRPO update with a KL to the reference: all weights against LoRA.

Each way runs in a process of its own: the actor loads, computes old and reference log-probs and takes one optimizer
step, over 4 rows of 256 tokens, one at a time. With all weights the reference is a second model; with LoRA it is the
actor without its adapters. `base` is what the process has before a model is loaded (Python, torch, transformers).
Prints each peak of resident memory, and its ratio to that of all weights, without the base.

    python benchmarks/lora_memory.py MODEL_FOLDER [--rank 16] [--threads N]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

import torch

WAYS = {
    "base": "nothing loaded",
    "full": "all weights, float32, and a reference model",
    "lora": "LoRA, frozen weights in float32",
    "lora-bfloat16": "LoRA, frozen weights in bfloat16, computed in float32",
}


def measure(way: str, model: str, rank: int) -> float:
    """Take the update in this process; its peak of resident memory in MiB."""
    from agentrl.config.root import RunConfig
    from agentrl.testing.batches import random_batch
    from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker

    if way == "base":
        import peft  # noqa: F401
        from transformers import AutoModelForCausalLM  # noqa: F401
    else:
        config = RunConfig()
        policy = config.actor_rollout_ref
        policy.model.path = model
        policy.model.lora_rank = 0 if way == "full" else rank
        policy.actor.fsdp_config.model_dtype = "bfloat16" if way == "lora-bfloat16" else "float32"
        policy.actor.fsdp_config.compute_dtype = "float32"
        policy.actor.use_kl_loss = True
        for section in (policy.actor, policy.rollout, policy.ref):
            name = "ppo_max_token_len_per_gpu" if section is policy.actor else "log_prob_max_token_len_per_gpu"
            setattr(section, name, 256)
        batch = random_batch([(64, 192)] * 4, 40_000, seed=1)
        actor = ActorRolloutRefWorker(config)
        actor.init_model(1)
        reference = actor
        if way == "full":
            reference = ActorRolloutRefWorker(config, "ref")
            reference.init_model(1)
        actor.compute_log_prob(batch)
        reference.compute_ref_log_prob(batch)
        actor.update_actor(batch)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure every way in its own process, or one of them in this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--way", choices=WAYS)
    args = parser.parse_args()
    if args.way:
        torch.set_num_threads(args.threads)
        print(measure(args.way, args.model, args.rank))
        return
    peaks: dict[str, float] = {}
    for way, what in WAYS.items():
        command = [sys.executable, __file__, args.model, "--way", way]
        command += ["--rank", str(args.rank), "--threads", str(args.threads)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks[way] = float(done.stdout.split()[-1])
        own = peaks[way] - peaks["base"]
        ratio = f"{own / (peaks['full'] - peaks['base']):6.2f}" if "full" in peaks else "     -"
        print(f"{way:14} {peaks[way]:8.0f} MiB {own:8.0f} MiB over the base {ratio}  {what}", flush=True)


if __name__ == "__main__":
    main()
