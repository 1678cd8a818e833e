"""One GRPO update of agentrl's actor against the same update with every row padded to the longest.

Both start from the same weights and take the same loss and optimizer (fused AdamW, clipped to norm 1). The baseline is
a plain transformers model without FSDP that computes logits at the response window only, as careful padded trainers
do. Prints the ratio of the best times (and of the best and worst pairing) and how far apart the weights of the two are
after one update, with 8 rollouts per prompt as in GRPO, and with all prompts different: there the demo's lengths leave
little to save, since padding adds only a quarter more tokens.

With TRL (extra `dev`) and the demo's warm start (`agentrl demo --prepare`), a whole step follows: see `whole_step.py`.

    python benchmarks/train_step.py [--rows 128] [--repeats 7] [--threads N]
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import whole_step
from transformers import AutoModelForCausalLM
from transformers.utils import logging as hf_logging

from agentrl.algorithms import POLICY_LOSSES
from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.testing.batches import random_batch
from agentrl.testing.models import build_tiny_model
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker

DEMO_SHAPE = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.02,
}
LR = 3e-4


def demo_lengths(rows: int) -> list[tuple[int, int]]:
    """Prompts of about 20 tokens, episodes of about 43: the demo's."""
    draw = np.random.default_rng(0)
    prompts = np.clip(draw.normal(20, 2.5, rows), 14, 30).round().astype(int)
    responses = np.clip(draw.normal(23, 3.5, rows), 6, 40).round().astype(int)
    return list(zip(prompts.tolist(), responses.tolist(), strict=True))


def log_normal_lengths(rows: int) -> list[tuple[int, int]]:
    """Responses with the long tail of real agents: median 60, clipped at 400."""
    draw = np.random.default_rng(0)
    responses = np.clip(draw.lognormal(np.log(60), 0.8, rows), 8, 400).round().astype(int)
    return [
        (int(prompt), int(response)) for prompt, response in zip(draw.integers(15, 40, rows), responses, strict=True)
    ]


def padded_update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: DataProto, max_tokens: int) -> None:
    """The baseline: every row as wide as the longest prompt plus the longest response."""
    columns = batch.batch
    width = columns["responses"].shape[1]
    rows_per_pass = max(1, max_tokens // columns["input_ids"].shape[1])
    tokens = int(columns["loss_mask"].sum())
    for part in batch.split(rows_per_pass):
        logits = model(
            input_ids=part.batch["input_ids"],
            attention_mask=part.batch["attention_mask"],
            position_ids=part.batch["position_ids"],
            logits_to_keep=width + 1,
            use_cache=False,
        ).logits[:, :-1]
        log_probs = torch.log_softmax(logits, -1).gather(-1, part.batch["responses"][..., None]).squeeze(-1)
        loss, _ = POLICY_LOSSES["vanilla"](
            log_probs,
            part.batch["old_log_probs"],
            part.batch["advantages"],
            part.batch["loss_mask"].float(),
            num_tokens=tokens,
        )
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def make_worker(folder: Path) -> ActorRolloutRefWorker:
    config = RunConfig()
    policy = config.actor_rollout_ref
    policy.model.path = str(folder)
    policy.actor.optim.lr = LR
    policy.actor.optim.weight_decay = 0.0
    policy.actor.ppo_mini_batch_size = 1_000_000
    worker = ActorRolloutRefWorker(config)
    worker.init_model(1)
    return worker


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(name: str, folder: Path, batch: DataProto, repeats: int) -> None:
    worker = make_worker(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)
    old = worker.compute_log_prob(batch)
    batch = DataProto({**batch.batch, "old_log_probs": old.batch["old_log_probs"]})
    max_tokens = worker.config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu

    worker.update_actor(batch)
    padded_update(model, optimizer, batch, max_tokens)
    ours = worker.model.full_weights(worker.model.net.lm)
    apart = max(float((ours[key] - value.detach()).abs().max()) for key, value in model.named_parameters())

    fast, slow = [], []
    for _ in range(repeats):
        fast.append(seconds_of(lambda: worker.update_actor(batch)))
        slow.append(seconds_of(lambda: padded_update(model, optimizer, batch, max_tokens)))
    worker.close()
    pairs = sorted(padded / ours for padded, ours in zip(slow, fast, strict=True))
    print(
        f"{name}: {len(batch)} rows, agentrl {min(fast):.3f} s, padded {min(slow):.3f} s, "
        f"ratio {min(slow) / min(fast):.2f} (pairs {pairs[0]:.2f} to {pairs[-1]:.2f}; weights after one update differ "
        f"by at most {apart:.1e})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    hf_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as parent:
        folder = build_tiny_model(Path(parent) / "model", **DEMO_SHAPE)
        for name, lengths in (
            ("demo lengths", demo_lengths(options.rows)),
            ("log-normal lengths", log_normal_lengths(options.rows)),
        ):
            for rollouts in (8, 1):
                batch = random_batch(lengths, DEMO_SHAPE["vocab_size"], rollouts=rollouts)
                compare(f"{name}, {rollouts} rollouts per prompt", folder, batch, options.repeats)
    if importlib.util.find_spec("trl") is None:
        print("whole step: not measured, TRL is not installed (extra `dev`)")
    elif not whole_step.warm_start(whole_step.DEMO).is_dir():
        print(f"whole step: not measured, {whole_step.DEMO} holds no warm start: run `agentrl demo --prepare`")
    else:
        whole_step.compare(whole_step.DEMO)


if __name__ == "__main__":
    main()
