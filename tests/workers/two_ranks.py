"""One of two gloo ranks that computes the gradient of every policy loss; run by `test_invariance.py`."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from agentrl.algorithms import AGGREGATION_MODES, POLICY_LOSSES
from agentrl.config.root import RunConfig
from agentrl.data_proto import DataProto
from agentrl.testing.batches import random_batch
from agentrl.workers.fsdp_model import FSDPModel
from agentrl.workers.loading import load_causal_lm
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.mini_batches import ROW_ID, MiniBatchPlan
from agentrl.workers.policy_update import update_policy
from agentrl.workers.token_nets import PolicyNet

Gradients = dict[str, torch.Tensor]
BATCH = random_batch([(3, 5), (7, 1), (1, 9), (4, 4), (5, 0), (2, 12), (6, 3)], 261, seed=1)
BATCH.batch[ROW_ID] = torch.arange(7)
BATCH.batch["rollout_is_weights"] = torch.rand(7, 12, generator=torch.Generator().manual_seed(3)) + 0.5
BATCH.batch["old_log_probs"] += 1.0
OPTIONS = {
    "clip_cov": {"clip_cov_ratio": 0.2, "clip_cov_lb": -0.5, "clip_cov_ub": 50.0},
    "kl_cov": {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7},
}


def gradients_of_all_losses(folder: str, rows: list[int], max_tokens: int) -> dict[str, Gradients]:
    """By `loss/mode`, the gradients of one mini-batch, of which this rank has these rows. A collective call."""
    config = RunConfig()
    policy = config.actor_rollout_ref
    policy.model.path = folder
    policy.actor.optim.betas = (0.0, 0.9)  # the first moment is the gradient of the last step
    policy.actor.optim.weight_decay = 0.0
    net = PolicyNet(load_causal_lm(policy.model, torch.float32, "sdpa"), 1.0)
    model = FSDPModel(net, torch.device("cpu"), policy.actor.fsdp_config, policy.actor.optim, 1e9)
    found: dict[str, Gradients] = {}
    for loss in POLICY_LOSSES:
        for mode in AGGREGATION_MODES:
            actor = policy.actor.model_copy(update={"policy_loss": loss, "loss_agg_mode": mode}, deep=True)
            for option, value in OPTIONS.get(loss, {}).items():
                setattr(actor.policy_loss_options, option, value)
            part: DataProto = BATCH[rows]
            plan = MiniBatchPlan(part, 100, 1, None)
            # A learning rate of 0 leaves the weights alone, so that every loss is taken at the same point.
            update_policy(model, part, plan, MicroLimits(max_tokens), actor, scale=16.0, lr=0.0, seed=[1])
            assert model.optimizer is not None
            state = model.optimizer.state_tensors()
            found[f"{loss}/{mode}"] = {
                name: getattr(value, "full_tensor", value.clone)().clone()
                for name, value in state.items()
                if name.startswith("exp_avg.")
            }
    return found


def main() -> None:
    """Join the other rank, compute, and let rank 0 write: FOLDER RENDEZVOUS_FILE RANK OUTPUT."""
    folder, meeting, rank, output = sys.argv[1:]
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, 2)
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=2, timeout=timedelta(seconds=120))
    found = gradients_of_all_losses(folder, [[5, 0, 2], [6, 1, 3, 4]][int(rank)], 25)
    if rank == "0":
        torch.save(found, output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
