"""LoRA in the workers: what learns, what stays, and that both are what the formulas say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.config.root import RunConfig
from agentrl.errors import CheckpointError, ConfigError
from agentrl.testing.batches import random_batch
from agentrl.testing.models import build_tiny_model
from agentrl.testing.vision_models import build_tiny_vision_model
from agentrl.workers.actor_rollout_ref import ActorRolloutRefWorker
from agentrl.workers.base_weights import weights_fingerprint
from agentrl.workers.critic import CriticWorker
from agentrl.workers.lora import preview

BATCH = random_batch([(3, 5), (7, 1), (1, 9), (4, 4)], 261, seed=1)
BATCH.batch["old_log_probs"] += 1.0
IDS = torch.arange(2, 40)[None]
Lora = Callable[..., RunConfig]


@pytest.fixture
def lora(make_config: Any) -> Lora:
    def make(path: Path | None = None, rank: int = 4, **keys: Any) -> RunConfig:
        config: RunConfig = make_config(path)
        config.actor_rollout_ref.actor.optim.lr = 1e-3
        for name, value in {"lora_rank": rank, **keys}.items():
            setattr(config.actor_rollout_ref.model, name, value)
        return config

    return make


def parameters(worker: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().to_local().clone() for name, p in worker.model.net.named_parameters()}  # type: ignore[attr-defined]


def trained(worker: ActorRolloutRefWorker, updates: int = 2) -> ActorRolloutRefWorker:
    for _ in range(updates):
        worker.update_actor(BATCH)
    return worker


def log_probs(worker: ActorRolloutRefWorker) -> torch.Tensor:
    return worker.compute_log_prob(BATCH).batch["old_log_probs"]


def test_only_adapters_learn_and_the_reference_is_the_model_without_them(lora: Lora, make_actor: Any) -> None:
    actor, reference = make_actor(lora()), make_actor(lora(), "ref")
    expected = reference.compute_ref_log_prob(BATCH).batch["ref_log_prob"]
    assert torch.equal(log_probs(actor), expected)  # B is 0
    before = parameters(actor)
    metrics = trained(actor).update_actor(BATCH).meta_info["metrics"]
    after = parameters(actor)
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {name for name in after if ".lora_" in name}
    assert set(actor.model.state_tensors()) == changed
    assert metrics["perf/trainable_parameters"] == sum(after[name].numel() for name in changed)
    torch.testing.assert_close(actor.compute_ref_log_prob(BATCH).batch["ref_log_prob"], expected, atol=1e-6, rtol=0)
    assert float((log_probs(actor) - expected).abs().max()) > 1e-2
    assert set(parameters(reference)) == {name.replace(".base_layer", "") for name in after if ".lora_" not in name}


def test_gradients_follow_from_those_of_the_whole_weights(lora: Lora, make_actor: Any, make_config: Any) -> None:
    """y = W x + s B A x with B = 0: the gradient of B is s dW A^T, and that of A is 0."""
    whole = make_actor(make_config())
    actor = make_actor(lora(lora_alpha=12.0))
    start = parameters(actor)
    found = []
    for worker in (whole, actor):
        worker.config.actor_rollout_ref.actor.grad_clip = worker.model.optimizer.grad_clip = 1e9
        worker.update_actor(BATCH)
        state = worker.model.optimizer.state_tensors()
        found.append({n[8:]: v.to_local() / 0.1 for n, v in state.items() if n.startswith("exp_avg.")})
    dense, own = found
    for name, gradient in own.items():
        path = name.partition(".lora_")[0]
        a = start[f"{path}.lora_A.default.weight"]
        expected = 3.0 * dense[f"{path}.weight"] @ a.T if ".lora_B." in name else torch.zeros_like(a)
        torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4, msg=name)


def test_frozen_weights_may_be_bfloat16_while_adapters_are_float32(lora: Lora, make_actor: Any) -> None:
    """A step of 1e-6 would be lost in bfloat16."""
    config = lora()
    config.actor_rollout_ref.actor.fsdp_config.model_dtype = "bfloat16"
    config.actor_rollout_ref.actor.optim.lr = 1e-6
    actor = make_actor(config)
    before = parameters(actor)
    trained(actor, 1)
    after = parameters(actor)
    assert {p.dtype for name, p in after.items() if ".lora_" in name} == {torch.float32}
    assert {p.dtype for name, p in after.items() if ".lora_" not in name} == {torch.bfloat16}
    steps = {name: float((after[name] - before[name]).abs().max()) for name in after}
    assert all((0.5e-6 < step < 2e-6) if ".lora_B." in name else step < 2e-6 for name, step in steps.items())


def test_recomputed_layers_give_the_same_weights(lora: Lora, make_actor: Any) -> None:
    """Nothing before the first adapter has a gradient: layers are recomputed all the same."""
    plain, lean = (trained(make_actor(lora(enable_gradient_checkpointing=again))) for again in (False, True))
    expected = parameters(plain)
    for name, value in parameters(lean).items():
        torch.testing.assert_close(value, expected[name], atol=5e-6, rtol=1e-5, msg=name)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's own
def test_exports_are_merged_and_the_adapter_is_peft_s(
    tmp_path: Path, tiny_model_dir: Path, lora: Lora, make_actor: Any
) -> None:
    from peft import PeftModel

    actor = trained(make_actor(lora()))
    actor.export_hf(str(tmp_path / "hf"))
    actor.export_weights(str(tmp_path / "engine"))
    actor.save_checkpoint(str(tmp_path / "actor"))
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    with torch.no_grad():
        plain = base(IDS).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)(IDS).logits
        engine = AutoModelForCausalLM.from_pretrained(tmp_path / "engine", dtype=torch.float32)(IDS).logits
        own = PeftModel.from_pretrained(base, tmp_path / "actor" / "lora_adapter")(IDS).logits
    torch.testing.assert_close(merged, own, atol=1e-5, rtol=1e-5)
    assert torch.equal(merged, engine)
    assert float((merged - plain).abs().max()) > 1e-2


def test_merging_holds_one_layer_at_a_time(lora: Lora, make_actor: Any) -> None:
    parts = [set(part) for part in make_actor(lora()).model.weight_parts()]
    assert [any("layers.0." in name for name in part) for part in parts] == [False, True, False]
    assert not any("lora" in name or "base_layer" in name for part in parts for name in part)


def test_a_checkpoint_holds_only_what_learns_and_resumes_exactly(tmp_path: Path, lora: Lora, make_actor: Any) -> None:
    first, second = trained(make_actor(lora())), make_actor(lora())
    first.save_checkpoint(str(tmp_path))
    second.load_checkpoint(str(tmp_path))
    for worker in (first, second):
        trained(worker, 1)
    left, right = ({**w.model.state_tensors(), **w.model.optimizer.state_tensors()} for w in (first, second))
    assert left.keys() == right.keys()
    assert all(torch.equal(value.to_local(), right[name].to_local()) for name, value in left.items() if value.ndim)
    assert all(torch.equal(value, parameters(second)[name]) for name, value in parameters(first).items())


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"rank": 8}, "was trained with lora_rank=4, got lora_rank=8"),
        ({"lora_alpha": 8.0}, "was trained with lora_alpha=16, got lora_alpha=8"),
        ({"target_modules": ["q_proj"]}, "was trained with other target_modules: it has '.*down_proj"),
        ({"rank": 0}, "holds a LoRA adapter, but this run trains all weights"),
        ({"seed": 7}, "is an adapter of other weights: it was trained on those of"),
    ],
)
def test_a_checkpoint_of_another_adapter_is_refused(
    tmp_path: Path, lora: Lora, make_actor: Any, keys: dict[str, Any], problem: str
) -> None:
    make_actor(lora()).save_checkpoint(str(tmp_path / "actor"))
    path = build_tiny_model(tmp_path / "other", seed=keys.pop("seed")) if "seed" in keys else None
    with pytest.raises(CheckpointError, match=problem):
        make_actor(lora(path, **keys)).load_checkpoint(str(tmp_path / "actor"))


def test_a_checkpoint_of_whole_weights_is_refused(
    tmp_path: Path, lora: Lora, make_actor: Any, make_config: Any
) -> None:
    make_actor(make_config()).save_checkpoint(str(tmp_path))
    with pytest.raises(CheckpointError, match="holds no adapter, but this run has LoRA"):
        make_actor(lora()).load_checkpoint(str(tmp_path))


def test_training_starts_from_an_adapter(tmp_path: Path, tiny_model_dir: Path, lora: Lora, make_actor: Any) -> None:
    first = trained(make_actor(lora(rank=3, lora_alpha=5.0, target_modules=["q_proj", "up_proj"])))
    first.save_checkpoint(str(tmp_path / "global_step_2" / "actor"))
    second = make_actor(lora(rank=0, lora_adapter_path=str(tmp_path / "global_step_2")))
    torch.testing.assert_close(log_probs(second), log_probs(first), atol=1e-6, rtol=0)
    before = log_probs(second)
    assert float((log_probs(trained(second)) - before).abs().max()) > 1e-3
    with pytest.raises(ConfigError, match=r"lora_rank: got 8, but the adapter in .* has 3: leave it out"):
        make_actor(lora(rank=8, lora_adapter_path=str(tmp_path / "global_step_2")))
    with pytest.raises(ConfigError, match=r"lora_adapter_path: '.*' holds no adapter: it has no adapter_config.json"):
        make_actor(lora(rank=0, lora_adapter_path=str(tiny_model_dir)))
    other = build_tiny_model(tmp_path / "other", hidden_size=64)
    with pytest.raises(ConfigError, match=r"has the shape \[3, 32\], wanted \[3, 64\]"):
        make_actor(lora(other, rank=0, lora_adapter_path=str(tmp_path / "global_step_2")))


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"target_modules": ["q_prj"]}, r"x\.target_modules: got 'q_prj', .* no such module\. Did you mean 'q_proj'\?"),
        ({"target_modules": ["q_proj", "linear_fc1"]}, r"got 'linear_fc1', but the model has no such module\. Known: "),
        ({"exclude_modules": ["k_prj"]}, r"x\.exclude_modules: got 'k_prj'.* Did you mean 'k_proj'\?"),
        ({"target_modules": r".*\.foo_(a|b)"}, r"fits no path of a module\. Its linear layers: down_proj, "),
        ({"target_modules": "(q_proj"}, r"got '\(q_proj', which is no regular expression: "),
        ({"target_modules": ["embed_tokens"]}, "'model.embed_tokens' is of the kind Embedding, and only linear layers"),
        ({"target_modules": ["lm_head"]}, "'lm_head' shares its weight with the input embedding"),
        ({"target_modules": ["norm"]}, r"x\.target_modules: .*not supported"),
    ],
)
def test_layers_that_cannot_have_an_adapter(
    tiny_model_dir: Path, lora: Lora, keys: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        preview(str(tiny_model_dir), lora(**keys).actor_rollout_ref.model, "x")


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({"target_modules": "all_linear", "exclude_modules": "k_proj"}, "down gate o q up v"),
        ({"target_modules": "q_proj,v_proj"}, "q v"),
        ({"target_modules": "[q_proj, v_proj]"}, "q v"),
        ({"target_modules": "q_proj"}, "q"),
        ({"target_modules": r".*layers\.0\..*\.(q|o)_proj"}, "o q"),
    ],
)
def test_the_layers_are_those_that_are_named(
    tiny_model_dir: Path, lora: Lora, make_actor: Any, keys: dict[str, Any], layers: str
) -> None:
    config = lora(**keys)
    counts = preview(str(tiny_model_dir), config.actor_rollout_ref.model, "x")
    assert counts.layers == tuple(f"{name}_proj" for name in layers.split())
    own = parameters(make_actor(config))
    assert counts.trainable == sum(p.numel() for name, p in own.items() if ".lora_" in name)
    assert counts.frozen == sum(p.numel() for name, p in own.items() if ".lora_" not in name)


def test_an_adapter_of_other_weights_is_no_start(
    tmp_path: Path, tiny_model_dir: Path, lora: Lora, make_actor: Any
) -> None:
    """Of the same shapes: nothing but the fingerprint tells them apart."""
    make_actor(lora()).save_checkpoint(str(tmp_path / "actor"))
    keys = lora(rank=0, lora_adapter_path=str(tmp_path / "actor")).actor_rollout_ref.model
    assert preview(str(tiny_model_dir), keys, "x").trainable > 0
    other = build_tiny_model(tmp_path / "other", seed=7)
    with pytest.raises(
        ConfigError, match=r"x\.lora_adapter_path: .* is an adapter of other weights: it was trained on"
    ):
        preview(str(other), keys, "x")


@pytest.mark.parametrize(
    "kind", [{"init_lora_weights": "pissa"}, {"init_lora_weights": "mica"}, {"alora_invocation_tokens": [1, 2]}]
)
def test_an_adapter_that_is_more_than_an_addition_is_no_start(
    tmp_path: Path, tiny_model_dir: Path, lora: Lora, kind: dict[str, Any]
) -> None:
    """PiSSA's adapters belong to what they left of the weights: the reference would be that rest, not the model."""
    from peft import LoraConfig

    (tmp_path / "adapter").mkdir()
    LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", **kind).save_pretrained(str(tmp_path / "adapter"))
    keys = lora(rank=0, lora_adapter_path=str(tmp_path / "adapter")).actor_rollout_ref.model
    ((name, value),) = kind.items()
    with pytest.raises(ConfigError, match=rf"has {name} {re.escape(str(value))}; agentrl trains plain LoRA"):
        preview(str(tiny_model_dir), keys, "x")


@pytest.mark.parametrize("head", [True, False])
def test_a_model_that_sees_pictures_gets_no_adapter(tmp_path: Path, lora: Lora, head: bool) -> None:
    """The policy and a model of `agentrl sft` (with the head), and the critic."""
    seeing, keys = build_tiny_vision_model(tmp_path / "seeing"), lora().actor_rollout_ref.model
    with pytest.raises(ConfigError, match=r"x\.lora_rank: adapters are not tried on models that see pictures: set 0"):
        preview(str(seeing), keys, "x", head=head)


def test_experts_stay_frozen(tmp_path: Path, lora: Lora) -> None:
    """`all-linear` adapts the attention; naming a part of the experts is an error."""
    moe = str(build_tiny_model(tmp_path / "moe", "qwen3_moe"))
    assert preview(moe, lora().actor_rollout_ref.model, "x").layers == ("k_proj", "o_proj", "q_proj", "v_proj")
    with pytest.raises(ConfigError, match=r"x\.target_modules: "):
        preview(moe, lora(target_modules=["q_proj", "down_proj"]).actor_rollout_ref.model, "x")


def test_an_output_head_of_its_own_may_have_an_adapter(tmp_path: Path, lora: Lora, make_actor: Any) -> None:
    untied = build_tiny_model(tmp_path / "untied", tie_word_embeddings=False)
    actor = trained(make_actor(lora(untied, target_modules=["lm_head", "q_proj"])))
    actor.export_hf(str(tmp_path / "hf"))
    merged = make_actor(lora(tmp_path / "hf", rank=0))
    torch.testing.assert_close(log_probs(merged), log_probs(actor), atol=1e-5, rtol=1e-5)


def test_the_critic_learns_by_adapters_and_its_head(tmp_path: Path, make_config: Any) -> None:
    config = make_config()
    config.critic.optim.lr = 1e-2
    config.critic.model.lora_rank = 4
    config.critic.fsdp_config.model_dtype = "bfloat16"
    config.critic.fsdp_config.compute_dtype = "float32"
    first, second = CriticWorker(config), CriticWorker(config)
    for worker in (first, second):
        worker.init_model(10)
    before = parameters(first)
    for _ in range(2):
        first.update_critic(BATCH)
    after = parameters(first)
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {name for name in after if ".lora_" in name or name.startswith("score.")}
    first.save_checkpoint(str(tmp_path))
    second.load_checkpoint(str(tmp_path))
    values = [worker.compute_values(BATCH).batch["values"] for worker in (first, second)]
    assert torch.equal(*values)
    assert float(values[0].abs().max()) > 0
    for worker in (first, second):
        worker.close()


def test_a_fingerprint_is_that_of_the_numbers(tmp_path: Path, tiny_model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    model.save_pretrained(tmp_path / "split", max_shard_size="20KB")
    assert len(list((tmp_path / "split").glob("*.safetensors"))) > 1
    assert weights_fingerprint(str(tmp_path / "split")) == weights_fingerprint(str(tiny_model_dir))
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.01)
    model.save_pretrained(tmp_path / "other")
    assert weights_fingerprint(str(tmp_path / "other")) != weights_fingerprint(str(tiny_model_dir))
