"""A key that was written and cannot act is told once, with its reason; one that asks for a feature is an error."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
import yaml
from recipes import overrides, write

from agentrl.algorithms import ADVANTAGE_ESTIMATORS, POLICY_LOSSES
from agentrl.config import RunConfig, check_run_config, dump_config, idle_keys, load_config, machine
from agentrl.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
AR = "actor_rollout_ref."
VLLM = (f"{AR}rollout.name=vllm", f"{AR}rollout.server.python=python")


def notes(caplog: pytest.LogCaptureFixture, *more: str) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        load_config(None, overrides(*more))
    return caplog.messages


def only_note(caplog: pytest.LogCaptureFixture, *more: str) -> str:
    (note,) = notes(caplog, *more)
    return note


def refusal(*more: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides(*more))
    (problem,) = caught.value.problems
    return problem


RM = ("reward_model.enable=true", "reward_model.model.path=/rm")


@pytest.fixture
def gpu_with_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "sglang_installed", lambda: True)
    monkeypatch.setattr(machine, "cuda_available", lambda: True)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["critic.model.path=/no/such/folder"], "adv_estimator is grpo, which has no critic (gae has one)"),
        (["reward_model.model.path=/rm"], "reward_model.enable is false"),
        (["reward_model.combine.model=0.5"], "reward_model.enable is false"),
        ([*RM, "reward_model.forward_max_token_len_per_gpu=9", "reward_model.micro_batch_size_per_gpu=4"], "counts"),
        ([*RM, "reward_model.fsdp_config.optimizer_offload=true"], "the reward model does not learn"),
        ([*RM, "reward_model.model.input_tokenizer=null", "reward_model.model.chat_template=x"], "as they are"),
        ([*RM, "reward_model.enable_resource_pool=false", "reward_model.nnodes=1"], "enable_resource_pool is false"),
        (["critic.optim.lr=1e-5"], "which has no critic"),  # the default, but written
        (["algorithm.kl_ctrl.kl_coef=0.01"], "algorithm.use_kl_in_reward is false"),
        (["algorithm.kl_penalty=abs"], "algorithm.use_kl_in_reward is false"),
        (["algorithm.lam=0.95"], "algorithm.adv_estimator is grpo, not gae"),
        (["algorithm.gamma=0.9"], "algorithm.adv_estimator is grpo, not gae or reinforce_plus_plus"),
        ([f"{AR}actor.kl_loss_coef=0.1"], "actor.use_kl_loss is false"),
        ([f"{AR}ref.log_prob_micro_batch_size_per_gpu=4"], "no KL to the reference policy is used"),
        ([f"{AR}rollout.gpu_memory_utilization=0.4"], "the embedded engine takes what it needs"),
        ([f"{AR}rollout.name=hf", f"{AR}rollout.gpu_memory_utilization=0.4"], "the hf engine takes what it needs"),
        ([f"{AR}rollout.name=hf", f"{AR}rollout.max_num_batched_tokens=9"], "takes the prompts of a batch whole"),
        ([f"{AR}rollout.name=hf", f"{AR}rollout.enable_prefix_caching=false"], "the hf engine reuses no prefixes"),
        ([f"{AR}rollout.server.python=/opt/py"], "the engine is part of agentrl and runs in its Python"),
        ([f"{AR}rollout.engine_kwargs.vllm={{a: 1}}"], "the engine is not vllm"),
        ([*VLLM, f"{AR}rollout.engine_kwargs.sglang={{a: 1}}"], "the engine is not sglang"),
        ([*VLLM, f"{AR}rollout.embedded.threads=2"], "the engine is vLLM: use rollout.max_num_seqs"),
        ([*VLLM, f"{AR}rollout.enforce_eager=true"], "on a CPU vLLM is started without graphs"),
        ([f"{AR}actor.fsdp_config.param_offload=true"], "training runs on the CPU"),
        ([f"{AR}nccl_timeout=60"], "one rank holds the whole model"),
        ([f"{AR}actor.ppo_max_token_len_per_gpu=9", f"{AR}actor.ppo_micro_batch_size_per_gpu=4"], "use_dynamic_bsz is"),
        ([f"{AR}actor.use_dynamic_bsz=true", f"{AR}actor.ppo_micro_batch_size_per_gpu=4"], "use_dynamic_bsz is true"),
        (["trainer.total_training_steps=3", "trainer.total_epochs=3"], "trainer.total_training_steps is 3"),
        ([f"{AR}rollout.val_kwargs.top_p=0.5"], "data.val_files is not given, so nothing is validated"),
        ([f"{AR}actor.optim.min_lr_ratio=0.5"], "warmup_style is constant"),
    ],
)
def test_a_key_that_cannot_act_is_told_with_its_reason(
    given: list[str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    note = only_note(caplog, *given)
    assert " has no effect here: " in note
    assert any(note.startswith(line.partition("=")[0]) for line in given)
    assert reason in note


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["critic.enable=true"], "critic.enable: got true, but algorithm.adv_estimator grpo has no critic: set"),
        (["critic.enable=false", "algorithm.adv_estimator=gae"], "got false, but algorithm.adv_estimator gae has a"),
        (["global_profiler.steps=[0]"], "trainer.profile_steps: got [0], wanted numbers of steps, from 1 on"),
        (["trainer.profile_steps=[1]", "trainer.profile_tool=nsys"], "got nsys, which needs a GPU; on CPUs, torch"),
        (["trainer.otlp_endpoint=localhost:4318"], "got 'localhost:4318', wanted an http(s) address, such as http://"),
        (["trainer.prometheus_address=here"], "trainer.prometheus_address: got 'here', wanted a port or host:port"),
        (["trainer.prometheus_address=0.0.0.0:70000"], "got '0.0.0.0:70000', wanted a port up to 65535"),
        ([f"{AR}rollout.trace.backend=weave"], "collector: set `trainer.otlp_endpoint` to its address"),
        ([f"{AR}actor.checkpoint.save_contents=[weights]"], "wanted a list of 'model', 'optimizer'"),
        (["reward_model.enable=true"], "reward_model.model.path: not given, wanted the folder of a classifier"),
        ([*RM, "reward_model.combine.model=0"], "got 0, so that the reward model's score never counts"),
        ([*RM, "reward_model.use_dynamic_bsz=false"], "reward_model.micro_batch_size_per_gpu: not given, but needed"),
        ([*RM, "reward_model.strategy=megatron"], "reward_model.strategy: got 'megatron', but Megatron is not"),
        ([*RM, "reward_model.micro_batch_size=8"], "give `micro_batch_size_per_gpu` instead"),
        ([f"{AR}actor.optim.optimizer_impl=bitsandbytes.optim"], "the optimizer is torch's AdamW"),
        (
            ["algorithm.rollout_correction.bypass_old_log_prob=true", "algorithm.rollout_correction.is_level=sequence"],
            "so algorithm.rollout_correction.is_level has nothing to correct",
        ),
        (["trainer.nnodes=2"], "trainer.nnodes: got 2, but without ray_init.address the run starts a private Ray"),
        ([f"{AR}rollout.name=sglang", f"{AR}rollout.weight_sync=tensor"], "which only the embedded engine understands"),
        ([*VLLM, f"{AR}rollout.weight_sync=tensor"], "which only the embedded engine understands"),
        ([*VLLM, f"{AR}rollout.weight_sync=distributed"], "got distributed, which vLLM does not take"),
        ([f"{AR}rollout.name=sglang", f"{AR}rollout.weight_sync=ipc"], "which ends an SGLang server on a CPU"),
        (
            [f"{AR}rollout.server.addresses=[http://a:1]", f"{AR}rollout.weight_sync=ipc"],
            "got ipc, but servers given by address may have other GPUs",
        ),
        ([*VLLM, "trainer.deterministic=true"], "only the embedded engine is deterministic"),
        ([f"{AR}rollout.name=hf", "trainer.deterministic=true"], "only the embedded engine is deterministic"),
        (
            [f"{AR}rollout.server.addresses=[http://localhost:9]", "trainer.deterministic=true"],
            "set actor_rollout_ref.rollout.name=embedded if they are embedded engines started with --deterministic",
        ),
        ([f"{AR}rollout.name=hf", f"{AR}rollout.tensor_model_parallel_size=2"], "is only for SGLang"),
        ([f"{AR}rollout.name=hf", f"{AR}rollout.server.args=[--x]"], "are only for SGLang, but"),
        ([f"{AR}rollout.server.args=[--x]"], "are only for SGLang, but actor_rollout_ref.rollout.name is auto, here"),
    ],
)  # fmt: skip
def test_a_key_that_asks_for_a_feature_is_an_error(given: list[str], problem: str) -> None:
    assert problem in refusal(*given)


@pytest.mark.usefixtures("gpu_with_sglang")
def test_auto_that_becomes_sglang(caplog: pytest.LogCaptureFixture) -> None:
    assert "actor_rollout_ref.rollout.name is auto, here sglang" in refusal("trainer.deterministic=true")
    assert "here sglang: use disk" in refusal(f"{AR}rollout.weight_sync=tensor")
    note = only_note(caplog, f"{AR}rollout.embedded.max_running_requests=8")
    assert note.endswith("use rollout.max_num_seqs, max_model_len, max_num_batched_tokens or server.args")
    fine = [f"{AR}rollout.max_num_seqs=8", f"{AR}rollout.gpu_memory_utilization=0.4"]
    assert notes(caplog, *fine, f"{AR}actor.fsdp_config.param_offload=true") == []


def test_rows_of_a_micro_batch_count_where_they_are_written() -> None:
    rows = "micro_batch_size_per_gpu=4"
    config = load_config(None, overrides(f"{AR}actor.ppo_{rows}", f"{AR}rollout.log_prob_{rows}"))
    assert not config.actor_rollout_ref.actor.use_dynamic_bsz
    assert not config.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz
    assert config.actor_rollout_ref.ref.log_prob_use_dynamic_bsz
    assert config.critic.use_dynamic_bsz
    both = load_config(None, overrides(f"{AR}actor.ppo_{rows}", f"{AR}actor.use_dynamic_bsz=true"))
    assert both.actor_rollout_ref.actor.use_dynamic_bsz
    null = load_config(None, overrides(f"{AR}actor.ppo_micro_batch_size_per_gpu=null"))
    assert null.actor_rollout_ref.actor.use_dynamic_bsz
    built = RunConfig.model_validate({"critic": {"ppo_micro_batch_size_per_gpu": 2}})
    assert not built.critic.use_dynamic_bsz


def test_many_keys_are_one_note_for_each_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    section = {"optim": {"lr": 1e-5, "eps": 1e-6}, "grad_clip": 2.0, "ppo_epochs": 2, "enable": None}
    recipe = write(tmp_path, "run.yaml", yaml.safe_dump({"critic": section, "algorithm": {"lam": 0.9, "gamma": 0.9}}))
    with caplog.at_level(logging.WARNING):
        load_config(recipe, overrides())
    critic, lam, gamma = sorted(caplog.messages, key=lambda line: "critic." not in line)
    assert critic.startswith("critic.optim.lr, critic.optim.eps, critic.ppo_epochs and critic.grad_clip have no effect")
    assert {lam.split(" ")[0], gamma.split(" ")[0]} == {"algorithm.lam", "algorithm.gamma"}
    del section["enable"]
    caplog.clear()
    load_config(write(tmp_path, "run.yaml", yaml.safe_dump({"critic": section})), overrides())
    assert caplog.messages == [
        "critic.* (4 keys) have no effect here: algorithm.adv_estimator is grpo, which has no critic (gae has one)"
    ]


def test_what_is_off_asks_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    off = ["trainer.critic_warmup=0", f"{AR}actor.fsdp_config.param_offload=False", "critic.ppo_epochs=null"]
    assert notes(caplog, *off, "algorithm.use_kl_in_reward=False") == []


def test_another_name_of_a_key_counts_where_the_key_is_not_given(caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, overrides(f"{AR}actor.optim.clip_grad=0.5"))
    assert config.actor_rollout_ref.actor.grad_clip == 0.5
    assert f"{AR}actor.optim.clip_grad is called '{AR}actor.grad_clip' here" in caplog.text
    config = load_config(None, overrides(f"{AR}actor.optim.clip_grad=0.5", f"{AR}actor.grad_clip=2.0"))
    assert config.actor_rollout_ref.actor.grad_clip == 2.0
    assert f"{AR}actor.optim.clip_grad has no effect here: {AR}actor.grad_clip is given" in caplog.text


def test_verl_s_keys_are_judged_by_what_was_given_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recipe = write(
        tmp_path,
        "run.yaml",
        "actor_rollout_ref: {model: {enable_activation_offload: true}}\nreward_model: {enable: false}\n",
    )
    load_config(recipe, overrides(f"{AR}model.enable_activation_offload=false", "reward_model.model.path=/rm"))
    assert "reward_model.model.path has no effect here: reward_model.enable is false" in caplog.text
    with pytest.raises(
        ConfigError, match=r"run\.yaml: actor_rollout_ref\.model\.enable_activation_offload: got true, but"
    ):
        load_config(recipe, overrides())


@pytest.mark.parametrize("contents", ["[model,optimizer,extra]", "[hf_model,extra,optimizer,model]", "[model]", "null"])
def test_contents_of_a_checkpoint_as_verl_names_them(contents: str) -> None:
    given = [f"{AR}actor.checkpoint.save_contents={contents}", f"critic.checkpoint.save_contents={contents}"]
    given += [f"{AR}actor.checkpoint.async_save=False", "critic.checkpoint.async_save=False"]
    config = load_config(None, overrides(*given, f"{AR}actor.checkpoint.mbridge_config=null"))
    saved = config.actor_rollout_ref.actor.checkpoint.save_contents
    assert sorted(saved) == sorted(
        contents.strip("[]").split(",") if "[" in contents else ["extra", "hf_model", "model", "optimizer"]
    )
    assert not config.trainer.async_save


def test_async_saves_under_the_name_of_verl() -> None:
    assert load_config(None, overrides(f"{AR}actor.checkpoint.async_save=True")).trainer.async_save


RECIPES = sorted(file.stem for file in CONFIGS.glob("*.yaml") if not file.stem.endswith("_sft"))


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_need_no_notes(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "copy.yaml").write_text((CONFIGS / f"{name}.yaml").read_text())  # as a user's own: all keys count
    given = [f"{AR}model.path=/m", "data.train_files=/t.parquet", "data.val_files=/v.parquet"]
    load_config(tmp_path / "copy.yaml", [] if name.startswith("demo") else given)
    assert caplog.messages == []


def test_what_a_shipped_recipe_writes_is_not_the_users(caplog: pytest.LogCaptureFixture) -> None:
    given = [f"{AR}model.path=/m", "data.train_files=/t.parquet", "trainer.test_freq=-1", "trainer.save_freq=-1"]
    load_config("grpo", [*given, f"{AR}actor.use_kl_loss=false"])
    assert caplog.messages == []


def test_a_dump_writes_nothing_that_was_not_written_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, overrides("algorithm.lam=0.5"))
    caplog.clear()
    again = load_config(write(tmp_path, "config.yaml", dump_config(config)))
    assert again == config
    assert [line.split(" ")[0] for line in caplog.messages] == ["algorithm.lam"]


def test_a_configuration_built_in_python_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    loaded = load_config(None, overrides("algorithm.lam=0.5"))
    built = RunConfig.model_validate(loaded.model_dump(exclude_unset=True))
    built.algorithm.gamma = 0.5
    caplog.clear()
    for config in (loaded, built, built):
        check_run_config(config)
    assert [line.split(" ")[0] for line in caplog.messages] == ["algorithm.gamma", "algorithm.lam"]


def test_the_options_of_advantage_estimators() -> None:
    rewards = torch.tensor([[0.0, 0.2, 1.0], [0.5, 0.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.1, 0.0]])
    mask, values = torch.ones(4, 3), torch.arange(12.0).view(4, 3) / 7
    options = {"gamma": idle_keys.USES_GAMMA, "lam": idle_keys.USES_LAMBDA, "norm_adv_by_std": idle_keys.DIVIDES_BY_STD}
    for option, users in options.items():
        acts = set()
        for name, estimate in ADVANTAGE_ESTIMATORS.items():
            given = {"values": values, "group_ids": [0, 0, 1, 1], "baselines": torch.ones(4)}
            advantages, _ = estimate(rewards, mask, **given)
            others, _ = estimate(rewards, mask, **given, **{option: False if option.startswith("norm") else 0.5})
            if not torch.equal(advantages, others):
                acts.add(name)
        assert acts == users, option


def test_the_clip_ranges_of_policy_losses() -> None:
    old = torch.tensor([[-1.0, -2.0, -0.5, -1.5], [-0.7, -3.3, -2.2, -1.0]])
    new = torch.tensor([[-0.8, -2.5, -0.5, -0.5], [-0.9, -0.3, -1.2, -1.0]])
    advantages, mask = torch.tensor([[1.0], [-0.5]]).expand(2, 4), torch.ones(2, 4)

    def acts(name: str, **clip: float) -> bool:
        default, changed = (POLICY_LOSSES[name](new, old, advantages, mask, **given) for given in ({}, clip))
        return bool(default[0] != changed[0])

    clipped = {name for name in POLICY_LOSSES if acts(name, clip_ratio_low=0.05, clip_ratio_high=0.05)}
    assert set(POLICY_LOSSES) - clipped == idle_keys.NO_CLIP
    assert {name for name in POLICY_LOSSES if acts(name, clip_ratio_c=1.5)} == idle_keys.DUAL_CLIP


@pytest.mark.parametrize("section", [f"{AR}actor", "critic"])
def test_the_data_type_of_weights_that_learn(
    section: str, gpu_with_sglang: None, caplog: pytest.LogCaptureFixture
) -> None:
    given = [f"{section}.fsdp_config.model_dtype=bfloat16", "algorithm.adv_estimator=gae"]
    on_gpu = [*given, "trainer.device=cuda"]
    assert "compute_dtype is auto, which is bfloat16 on a GPU" in only_note(caplog, *on_gpu)
    explicit = [*given, f"{section}.fsdp_config.compute_dtype=float32"]
    assert "weights that learn are float32, and the computation is float32" in only_note(caplog, *explicit)
    assert notes(caplog, *given, "trainer.device=cpu") == []


def test_a_reference_keeps_its_data_type_on_a_gpu(gpu_with_sglang: None, caplog: pytest.LogCaptureFixture) -> None:
    given = [f"{AR}ref.fsdp_config.model_dtype=bfloat16", f"{AR}actor.use_kl_loss=true", "trainer.device=cuda"]
    assert notes(caplog, *given) == []


def test_nothing_is_trained_with_val_only(caplog: pytest.LogCaptureFixture) -> None:
    given = ["trainer.val_only=true", "data.val_files=/v.parquet", "algorithm.adv_estimator=gae"]
    keys = [f"{AR}actor.use_kl_loss=true", "critic.model.path=/c", f"{AR}ref.log_prob_micro_batch_size_per_gpu=4"]
    told = " ".join(notes(caplog, *given, *keys))
    assert all(line.partition("=")[0] in told for line in keys)
