"""The actor of one rank against plain PyTorch written out here: log-probs, gradients, whole updates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.algorithms import POLICY_LOSSES
from agentrl.data_proto import DataProto
from agentrl.errors import ConfigError, DataProtoError
from agentrl.testing.batches import random_batch
from agentrl.testing.models import build_tiny_model
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from agentrl.workers.attention import register_varlen
from agentrl.workers.micro_batch_plan import MicroLimits
from agentrl.workers.micro_batches import RowLayout
from agentrl.workers.token_nets import RowShape
from agentrl.workers.token_stats import EntropyMode

LENGTHS = [(3, 5), (7, 1), (1, 9), (4, 4), (5, 0), (2, 12), (6, 3)]
VOCAB = 261


def plain_log_probs(lm: Any, batch: DataProto, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies (B, R), one row at a time, without padding, 0 where the mask is 0."""
    width = batch.batch["responses"].shape[1]
    log_probs, entropies = [], []
    for row in batch:
        kept = row.batch["attention_mask"][0].bool()
        ids = row.batch["input_ids"][:, kept]
        response = int(kept[-width:].sum())
        distribution = torch.distributions.Categorical(logits=lm(input_ids=ids).logits[0, :-1] / temperature)
        pad = (0, width - response)
        token = distribution.log_prob(ids[0, 1:])[len(distribution.entropy()) - response :]
        entropy = distribution.entropy()[len(distribution.entropy()) - response :]
        log_probs.append(torch.nn.functional.pad(token, pad))
        entropies.append(torch.nn.functional.pad(entropy, pad))
    mask = batch.batch["response_mask"].bool()
    return torch.stack(log_probs).where(mask, 0.0), torch.stack(entropies).where(mask, 0.0)


def gradients(worker: ActorRolloutRefWorker) -> dict[str, torch.Tensor]:
    """The (unclipped) gradient of the only update so far, out of AdamW's first moment."""
    optimizer = worker.model.optimizer
    assert optimizer is not None
    beta = worker.config.actor_rollout_ref.actor.optim.betas[0]
    return {
        name.removeprefix("exp_avg.lm."): value.full_tensor() / (1 - beta)
        for name, value in optimizer.state_tensors().items()
        if name.startswith("exp_avg.")
    }


def weights(worker: ActorRolloutRefWorker) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in worker.model.full_weights().items()}


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_log_probs_equal_a_plain_forward_pass(family: str, tmp_path: Path, make_config: Any, make_actor: Any) -> None:
    folder = build_tiny_model(tmp_path, family)
    config = make_config(folder)
    config.actor_rollout_ref.rollout.temperature = 0.7
    batch = random_batch(LENGTHS, VOCAB)
    result = make_actor(config).compute_log_prob(batch)
    with torch.no_grad():
        expected = plain_log_probs(AutoModelForCausalLM.from_pretrained(folder), batch, 0.7)
    torch.testing.assert_close(result.batch["old_log_probs"], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result.batch["entropys"], expected[1], atol=1e-5, rtol=1e-5)


def test_log_probs_do_not_depend_on_micro_batches(make_config: Any, make_actor: Any) -> None:
    batch = random_batch(LENGTHS, VOCAB)
    whole = make_actor().compute_log_prob(batch).batch["old_log_probs"]
    by_rows, by_tokens = make_config(), make_config()
    by_rows.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz = False
    by_rows.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu = 2
    by_tokens.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu = 9
    for config in (by_rows, by_tokens):
        torch.testing.assert_close(make_actor(config).compute_log_prob(batch).batch["old_log_probs"], whole)


def test_packed_rows_give_the_same_log_probs(make_actor: Any) -> None:
    """On a CPU transformers turns the restarting positions into a block mask, so packing itself can be checked."""
    batch = random_batch(LENGTHS, VOCAB)
    worker = make_actor()
    expected = worker.compute_log_prob(batch).batch["old_log_probs"]
    got = torch.zeros_like(expected)
    micros = RowLayout(batch, "response_mask").micro_batches(None, MicroLimits(max_tokens=25, packed=True))
    assert len(micros.batches) > 1
    for micro, (log_probs, _) in worker.model.infer(micros, EntropyMode.NONE):
        got[micro.rows, : micro.mask.shape[1]] = micro.spread(log_probs)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


ROLLOUTS = [(50, 5), (50, 1), (50, 3), (50, 4), (60, 0), (60, 2), (60, 3), (60, 8)]
"""Two prompts of four rollouts each."""


def test_shared_prompts_give_the_same_log_probs(make_config: Any, make_actor: Any) -> None:
    worker = make_actor()
    batch = random_batch(ROLLOUTS, VOCAB, rollouts=4)
    assert RowLayout(batch, "response_mask").micro_batches(None, worker._infer_limits).shared
    result = worker.compute_log_prob(batch)
    with torch.no_grad():
        lm = AutoModelForCausalLM.from_pretrained(worker.config.actor_rollout_ref.model.path)
        expected = plain_log_probs(lm, batch)
    torch.testing.assert_close(result.batch["old_log_probs"], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result.batch["entropys"], expected[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "fields", "shape"),
    [
        ("qwen3", {}, RowShape.SHARED_PROMPTS),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}, RowShape.SHARED_PROMPTS),
        ("mistral", {"sliding_window": 4}, RowShape.ROWS),
    ],
)
def test_shape_of_rows_by_model(
    family: str, fields: dict[str, Any], shape: RowShape, tmp_path: Path, make_config: Any, make_actor: Any
) -> None:
    folder = build_tiny_model(tmp_path, family, **fields)
    worker = make_actor(make_config(folder))
    assert worker._limits.share_prompts is (shape is RowShape.SHARED_PROMPTS)
    batch = random_batch(ROLLOUTS, VOCAB, rollouts=4)
    with torch.no_grad():
        expected = plain_log_probs(AutoModelForCausalLM.from_pretrained(folder), batch)[0]
    got = worker.compute_log_prob(batch).batch["old_log_probs"]
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the variable-length kernel runs on GPUs only")
def test_the_variable_length_kernel_equals_sdpa(tiny_model_dir: Path) -> None:
    register_varlen()
    ids = torch.randint(0, VOCAB, (1, 24), device="cuda")
    starts = torch.tensor([0, 10, 24], dtype=torch.int32, device="cuda")
    positions = torch.cat([torch.arange(10), torch.arange(14)])[None].cuda()
    logits = {}
    for name in ("agentrl_varlen", "sdpa"):
        lm = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.bfloat16, attn_implementation=name).cuda()
        packed = {"cu_seq_lens_q": starts, "max_length_q": 14}
        logits[name] = lm(input_ids=ids, position_ids=positions, use_cache=False, **packed).logits
    torch.testing.assert_close(logits["agentrl_varlen"], logits["sdpa"], atol=0.1, rtol=0.1)


def reference_loss(lm: Any, batch: DataProto, config: Any) -> torch.Tensor:
    """Vanilla PPO with dual clip, KL (k3) and entropy, written from the formulas in float32."""
    actor, columns = config.actor_rollout_ref.actor, batch.batch
    log_probs, entropy = plain_log_probs(lm, batch)
    mask = columns["response_mask"].bool()
    ratio = (log_probs - columns["old_log_probs"]).clamp(-20, 20).exp()
    advantage = columns["advantages"]
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
    loss = torch.where(advantage < 0, torch.minimum(loss, -advantage * 3.0), loss)
    if "rollout_is_weights" in columns:
        loss = loss * columns["rollout_is_weights"]
    behind = columns["ref_log_prob"] - log_probs
    loss = loss + actor.use_kl_loss * actor.kl_loss_coef * (behind.exp() - 1 - behind)
    loss = (loss - actor.entropy_coeff * entropy).where(mask, 0.0)
    lengths = mask.sum(1)
    rows = int((lengths > 0).sum())
    if actor.loss_agg_mode == "token-mean":
        return loss.sum() / mask.sum()
    if actor.loss_agg_mode == "seq-mean-token-mean":
        return (loss.sum(1) / lengths.clamp(min=1)).sum() / rows
    total = loss.sum() / rows
    return total / 512 if actor.loss_agg_mode == "seq-mean-token-sum-norm" else total


def near_policy(lm: Any, batch: DataProto) -> DataProto:
    """Old and reference log-probs near the policy's own, so that clipping acts on some tokens only."""
    with torch.no_grad():
        own = plain_log_probs(lm, batch)[0]
    noise = torch.Generator().manual_seed(5)
    mask = batch.batch["response_mask"]
    columns = {
        name: own + scale * torch.randn(own.shape, generator=noise) * mask
        for name, scale in (("old_log_probs", 0.3), ("ref_log_prob", 0.5))
    }
    return DataProto({**batch.batch, **columns})


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("rollouts", [1, 4])
def test_gradient_equals_plain_pytorch(
    mode: str, extras: bool, rollouts: int, make_config: Any, make_actor: Any
) -> None:
    terms = {"use_kl_loss": True, "kl_loss_coef": 0.1, "entropy_coeff": 0.05} if extras else {}
    budget = 30 if rollouts == 1 else 90
    config = make_config(loss_agg_mode=mode, grad_clip=1e9, ppo_max_token_len_per_gpu=budget, **terms)
    lm = AutoModelForCausalLM.from_pretrained(config.actor_rollout_ref.model.path)
    batch = near_policy(lm, random_batch(LENGTHS if rollouts == 1 else ROLLOUTS, VOCAB, rollouts=rollouts))
    if extras:
        batch = batch.union(DataProto({"rollout_is_weights": torch.rand(batch.batch["advantages"].shape) + 0.5}))
    worker = make_actor(config)
    assert RowLayout(batch, "response_mask").micro_batches(None, worker._limits).shared is (rollouts > 1)
    metrics = worker.update_actor(batch).meta_info["metrics"]
    loss = reference_loss(lm, batch, config)
    loss.backward()
    expected = {name: parameter.grad for name, parameter in lm.named_parameters()}
    got = gradients(worker)
    assert got.keys() == expected.keys()
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, atol=1e-5 * largest, rtol=1e-4, msg=name)
    norm = math.sqrt(sum(float(value.pow(2).sum()) for value in expected.values()))
    assert metrics["actor/grad_norm"] == pytest.approx(norm, rel=1e-4)
    if not extras:
        assert metrics["actor/pg_loss"] == pytest.approx(float(loss.detach()), rel=1e-4)


def test_whole_updates_equal_plain_pytorch(make_config: Any, make_actor: Any) -> None:
    """Two epochs over two mini-batches, clipped, with weight decay: four steps of torch's AdamW."""
    config = make_config(ppo_mini_batch_size=4, ppo_epochs=2, grad_clip=0.05)
    config.actor_rollout_ref.actor.optim.weight_decay = 0.1
    lm = AutoModelForCausalLM.from_pretrained(config.actor_rollout_ref.model.path)
    batch = near_policy(lm, random_batch(LENGTHS, VOCAB))
    worker = make_actor(config)
    metrics = worker.update_actor(batch).meta_info["metrics"]
    matrices = [parameter for parameter in lm.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in lm.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4)
    for part in [batch[:4], batch[4:], batch[:4], batch[4:]]:
        reference_loss(lm, part, config).backward()
        torch.nn.utils.clip_grad_norm_(lm.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
    got = worker.model.full_weights(worker.model.net.lm)
    for name, parameter in lm.named_parameters():
        torch.testing.assert_close(got[name], parameter.detach(), atol=1e-5, rtol=1e-5, msg=name)
    assert metrics["actor/lr"] == 1e-4
    assert metrics["actor/skipped_steps"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"ppo_max_token_len_per_gpu": 1},
        {"ppo_max_token_len_per_gpu": 20},
        {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 3},
    ],
)
def test_micro_batches_never_change_an_update(fields: dict[str, Any], make_actor: Any) -> None:
    batch = random_batch(LENGTHS, VOCAB)
    one, many = make_actor(), make_actor(**fields)
    metrics = [worker.update_actor(batch).meta_info["metrics"] for worker in (one, many)]
    for name, value in one.model.full_weights().items():
        torch.testing.assert_close(many.model.full_weights()[name], value, atol=5e-6, rtol=1e-5)
    for name in ("pg_loss", "entropy", "ppo_kl", "pg_clipfrac", "grad_norm"):
        assert metrics[1][f"actor/{name}"] == pytest.approx(metrics[0][f"actor/{name}"], rel=1e-4)


@pytest.mark.parametrize("asked", [True, None])
def test_gradient_checkpointing_changes_nothing(
    asked: bool | None, make_config: Any, make_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is asked for, or the model is large; a small one does without."""
    batch = random_batch(LENGTHS, VOCAB)
    config = make_config()
    config.actor_rollout_ref.model.enable_gradient_checkpointing = asked
    plain = make_actor()
    assert not plain.model.net.lm.model.layers[0].gradient_checkpointing
    if asked is None:
        monkeypatch.setattr("agentrl.config.actor.RECOMPUTE_FROM", 1000)
    lean = make_actor(config)
    assert lean.model.net.lm.model.layers[0].gradient_checkpointing
    for worker in (plain, lean):
        worker.update_actor(batch)
    for name, value in plain.model.full_weights().items():
        torch.testing.assert_close(lean.model.full_weights()[name], value, atol=5e-6, rtol=1e-5)


def test_a_step_that_is_not_finite_is_skipped_and_counted(make_actor: Any) -> None:
    batch = random_batch(LENGTHS, VOCAB)
    worker = make_actor(ppo_mini_batch_size=4)
    before = weights(worker)
    poisoned = batch.batch["advantages"].clone()
    poisoned[1, 0] = math.inf
    metrics = worker.update_actor(DataProto({**batch.batch, "advantages": poisoned})).meta_info["metrics"]
    assert metrics["actor/skipped_steps"] == 1
    assert math.isfinite(metrics["actor/grad_norm"])
    assert any(not torch.equal(value, before[name]) for name, value in weights(worker).items())
    twin = make_actor()
    twin.update_actor(batch[4:])
    for name, value in worker.model.full_weights().items():
        torch.testing.assert_close(value, twin.model.full_weights()[name], atol=5e-6, rtol=1e-5)


def test_shuffled_epochs_differ_and_repeat(make_actor: Any) -> None:
    batch = random_batch(LENGTHS, VOCAB)
    fields = {"ppo_mini_batch_size": 2}
    results = [make_actor(**fields, shuffle=shuffle) for shuffle in (True, True, False)]
    for worker in results:
        worker.update_actor(batch)
    first, second, ordered = (worker.model.full_weights()["lm.model.embed_tokens.weight"] for worker in results)
    assert torch.equal(first, second)
    assert not torch.allclose(first, ordered, atol=1e-5)


def test_a_batch_without_trained_tokens_does_not_move_the_policy(make_actor: Any) -> None:
    worker = make_actor()
    before = weights(worker)
    metrics = worker.update_actor(random_batch([(3, 0), (2, 0)], VOCAB)).meta_info["metrics"]
    assert metrics["actor/grad_norm"] == 0.0
    assert all(torch.equal(value, before[name]) for name, value in worker.model.full_weights().items())


def test_the_reference_is_frozen_and_equals_the_policy_at_the_start(make_actor: Any) -> None:
    batch = random_batch(LENGTHS, VOCAB)
    actor, reference = make_actor(), make_actor(role="ref")
    ref = reference.compute_ref_log_prob(batch)
    assert set(ref.batch) == {"ref_log_prob"}
    assert torch.equal(ref.batch["ref_log_prob"], actor.compute_log_prob(batch).batch["old_log_probs"])
    assert reference.model.optimizer is None
    assert not any(parameter.requires_grad for parameter in reference.model.net.parameters())


def test_rate_follows_the_schedule_of_updates(make_config: Any, make_actor: Any) -> None:
    config = make_config(ppo_mini_batch_size=3)
    config.actor_rollout_ref.actor.optim.warmup_style = "linear"
    worker = make_actor(config)
    batch = random_batch(LENGTHS, VOCAB)
    rates = [worker.update_actor(batch).meta_info["metrics"]["actor/lr"] for _ in range(3)]
    assert rates == pytest.approx([1e-4, 0.9e-4, 0.8e-4])


def test_options_and_clip_ratios_reach_the_formula(make_config: Any, make_actor: Any) -> None:
    """Three updates that differ in one key each; the losses are those of `POLICY_LOSSES` with the same names."""
    lm = AutoModelForCausalLM.from_pretrained(make_config().actor_rollout_ref.model.path)
    batch = near_policy(lm, random_batch(LENGTHS, VOCAB))
    columns = batch.batch
    with torch.no_grad():
        own = plain_log_probs(lm, batch)[0]
    terms = (own, columns["old_log_probs"], columns["advantages"], columns["loss_mask"])
    for name, keys, options in (
        ("sapo", {}, {}),
        ("sapo", {}, {"tau_pos": 3.0, "tau_neg": 0.5}),
        ("kl_cov", {}, {"kl_cov_ratio": 0.5, "ppo_kl_coef": 7.0}),
        ("vanilla", {"clip_ratio_low": 0.01, "clip_ratio_high": 0.5, "clip_ratio_c": 1.5}, {}),
    ):
        config = make_config(policy_loss=name, **keys)
        for option, value in options.items():
            setattr(config.actor_rollout_ref.actor.policy_loss_options, option, value)
        metrics = make_actor(config).update_actor(batch).meta_info["metrics"]
        loss, _ = POLICY_LOSSES[name](*terms, **keys, **options)
        assert metrics["actor/pg_loss"] == pytest.approx(float(loss), rel=1e-4), (name, keys, options)
        plain, _ = POLICY_LOSSES[name](*terms)
        assert (float(plain) == pytest.approx(float(loss), rel=1e-3)) is not bool(keys or options)


def test_an_update_reads_the_loss_mask_and_log_probs_the_response_mask(make_actor: Any) -> None:
    batch = random_batch(LENGTHS, VOCAB)
    narrow = batch.batch["response_mask"].clone()
    narrow[5] = 0
    trained, without = make_actor(), make_actor()
    trained.update_actor(DataProto({**batch.batch, "loss_mask": narrow}))
    rest = [row for row in range(len(LENGTHS)) if row != 5]
    without.update_actor(batch[rest])
    for name, value in without.model.full_weights().items():
        torch.testing.assert_close(trained.model.full_weights()[name], value, atol=5e-6, rtol=1e-5)
    log_probs = trained.compute_log_prob(DataProto({**batch.batch, "loss_mask": narrow})).batch["old_log_probs"]
    assert (log_probs != 0).equal(batch.batch["response_mask"].bool())


def test_unknown_loss_is_named_with_the_nearest(make_actor: Any) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'vanilla'"):
        make_actor(policy_loss="vanila")


def test_rows_without_a_number_of_rows(make_actor: Any) -> None:
    with pytest.raises(ConfigError, match="ppo_micro_batch_size_per_gpu"):
        make_actor(use_dynamic_bsz=False)


def test_a_missing_column_is_named(make_actor: Any) -> None:
    batch = random_batch(LENGTHS, VOCAB)
    batch.pop(["ref_log_prob"])
    with pytest.raises(DataProtoError, match="ref_log_prob"):
        make_actor(use_kl_loss=True).update_actor(batch)
