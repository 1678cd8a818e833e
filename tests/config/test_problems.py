"""One error lists every problem: its key, what was given, what is allowed, the nearest key."""

from __future__ import annotations

import pickle
import re

import pytest
from recipes import overrides

from agentrl.config import RunConfig, check_run_config, load_config
from agentrl.errors import ConfigError


def problems(*more: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides(*more))
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems
    return caught.value.problems


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("trainer.total_epoch=3", "trainer.total_epoch: unknown key (given 3). Did you mean 'trainer.total_epochs'?"),
        ("trainer.train_batch_size=3", "Did you mean 'data.train_batch_size'?"),
        ("actor.optim.lr=1", "actor: unknown key (given a section). Did you mean 'actor_rollout_ref.actor'?"),
        ("actor_rollout_ref.actor.kl_los_coef=1", "Did you mean 'actor_rollout_ref.actor.kl_loss_coef'?"),
        ("rollout.multi_turn.tool_config_path=x", "Did you mean 'actor_rollout_ref.rollout'?"),
        ("data.zzz=1", "Known in 'data': train_files, val_files"),
        ("data.seed.x=1", "data.seed: got a section, wanted a whole number"),
        ("data=5", "data: got 5, wanted a section with the keys train_files"),
        ("data.seed=abc", "data.seed: got 'abc', wanted a whole number"),
        ("data.seed=1.5", "data.seed: got 1.5, wanted a whole number"),
        ("data.seed='3'", "data.seed: got '3', wanted a whole number"),
        ("data.seed=true", "data.seed: got true, wanted a whole number"),
        ("data.seed=null", "data.seed: got null, wanted a whole number"),
        ("data.shuffle=yes", "data.shuffle: got 'yes', wanted true or false"),
        ("data.shuffle=1", "data.shuffle: got 1, wanted true or false"),
        ("trainer.nnodes=99999999", "trainer.nnodes: got 99999999, wanted a whole number at least 1 and at most 1000"),
        ("trainer.n_gpus_per_node=99999999", "got 99999999, wanted a whole number at least 1 and at most 1024"),
        ("data.train_batch_size=0", "data.train_batch_size: got 0, wanted a whole number at least 1"),
        ("actor_rollout_ref.rollout.top_p=1.5", "got 1.5, wanted a number above 0 and at most 1"),
        ("actor_rollout_ref.actor.optim.lr=fast", "actor.optim.lr: got 'fast', wanted a number above 0"),
        ("actor_rollout_ref.actor.optim.betas=[0.9]", "got [0.9], wanted a list of 2 numbers"),
        ("trainer.backend=rya", "trainer.backend: got 'rya', wanted one of 'ray', 'local'"),
        ("actor_rollout_ref.rollout.stop=[1,2]", "actor_rollout_ref.rollout.stop: got [1, 2], wanted a list of text"),
        ("actor_rollout_ref.rollout.multi_turn.max_user_turns=-1", "got -1, wanted a whole number at least 0 or null"),
        ("custom_reward_function.reward_kwargs=3", "custom_reward_function.reward_kwargs: got 3, wanted a mapping"),
    ],
)  # fmt: skip
def test_a_problem_says_all_there_is_to_know(override: str, problem: str) -> None:
    found = problems(override)
    assert len(found) == 1
    assert problem in found[0]


def test_all_problems_come_in_one_error() -> None:
    found = problems("trainer.total_epoch=3", "data.seed=x", "trainer.backend=rya", "trainer.test_freq=5", "nonsense")
    keys = ["trainer.total_epoch", "data.seed", "trainer.backend", "trainer.test_freq", "override 'nonsense'"]
    assert sorted(key for key in keys for line in found if line.startswith(key)) == sorted(keys)
    assert len(found) == len(keys)


@pytest.mark.parametrize("key", ["actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.actor.entropy_coeff"])
@pytest.mark.parametrize("value", [".inf", ".nan"])
def test_a_number_is_finite(key: str, value: str) -> None:
    (problem,) = problems(f"{key}={value}")
    assert re.match(rf"{re.escape(key)}: got (NaN|Infinity), wanted a number", problem)


def test_a_reference_that_leads_nowhere_is_told_once() -> None:
    (problem,) = problems("algorithm.gamma=${algorithm.gama}")
    assert problem == "algorithm.gamma: '${algorithm.gama}' does not name a key. Did you mean 'algorithm.gamma'?"


def test_a_wrong_value_raises_no_second_problem_through_its_default() -> None:
    assert [line.split(":")[0] for line in problems("data.train_files=3.5", "data.train_files={a: 1}")] == [
        "data.train_files"
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["actor_rollout_ref.model.path="], "actor_rollout_ref.model.path: not given"),
        (["data.train_files=null"], "data.train_files: not given"),
        (["actor_rollout_ref.rollout.multi_turn.tool_config_path=no.yaml"], "no.yaml does not exist"),
        (["actor_rollout_ref.rollout.multi_turn.interaction_config_path=no.yaml"], "no.yaml does not exist"),
        (["actor_rollout_ref.rollout.agent.agent_loop_config_path=no.yaml"], "no.yaml does not exist"),
        (
            ["actor_rollout_ref.rollout.multi_turn.tool_config_path=/tmp"],
            "tool_config_path: /tmp is a folder, wanted a file",
        ),
        (["custom_reward_function.path=no.py"], "custom_reward_function.path: no.py does not exist"),
        (["actor_rollout_ref.rollout.multi_turn.format=herms"], "no tool parser"),
        (["actor_rollout_ref.rollout.agent.default_agent_loop=tol_agent"], "Did you mean 'tool_agent'?"),
        (["trainer.logger=[console,swanlab]"], "trainer.logger: 'swanlab' is not a tracker"),
        (["algorithm.adv_estimator=grop"], "algorithm.adv_estimator: got 'grop'. Did you mean 'grpo'?"),
        (["actor_rollout_ref.actor.policy_loss=vanila"], "policy_loss: got 'vanila'. Did you mean 'vanilla'?"),
        (
            ["trainer.test_freq=5"],
            "trainer.test_freq: needs validation rows, but data.val_files is not given: give it, or set "
            "trainer.test_freq=-1",
        ),
        (["trainer.val_only=true"], "trainer.val_only: needs validation rows"),
        (["data.val_max_samples=5"], "data.val_max_samples: needs validation rows"),
        (["data.dataset_weights=[1,2]"], "data.dataset_weights: got 2 weights for 1 files"),
        (["data.dataset_weights=[-1]"], "data.dataset_weights: got [-1.0], wanted weights of at least 0"),
        (["data.train_batch_size=8"], "ppo_mini_batch_size: got 16, wanted at most data.train_batch_size (8)"),
        (["actor_rollout_ref.actor.use_dynamic_bsz=false"], "actor.ppo_micro_batch_size_per_gpu: not given, but"),
        (["actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=false"], "log_prob_micro_batch_size_per_gpu: not given"),
        (
            ["actor_rollout_ref.ref.log_prob_use_dynamic_bsz=false", "actor_rollout_ref.actor.use_kl_loss=true"],
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu: not given",
        ),
        (["algorithm.adv_estimator=gae", "critic.use_dynamic_bsz=false"], "critic.ppo_micro_batch_size_per_gpu: not"),
        (["algorithm.adv_estimator=gae", "critic.ppo_mini_batch_size=17"], "critic.ppo_mini_batch_size: got 17"),
        (["actor_rollout_ref.rollout.n=1"], "actor_rollout_ref.rollout.n: got 1, wanted at least 2"),
        (
            [
                "actor_rollout_ref.rollout.n=1",
                "algorithm.adv_estimator=gae",
                "algorithm.filter_zero_variance_groups=true",
            ],
            "algorithm.filter_zero_variance_groups: got true, but with actor_rollout_ref.rollout.n 1",
        ),
        (["data.gen_batch_size=24"], "data.gen_batch_size: got 24, but data.train_batch_size is 16, and a step"),
        (["trainer.critic_warmup=3"], "trainer.critic_warmup: got 3, but adv_estimator grpo has no critic"),
        (["algorithm.kl_ctrl.type=adaptive"], "got 'adaptive', but algorithm.use_kl_in_reward is false"),
        (
            ["algorithm.rollout_correction.bypass_old_log_prob=true", "actor_rollout_ref.rollout.top_p=0.9"],
            "bypass_old_log_prob: got true, but engines report log-probs before truncation",
        ),
        (
            ["algorithm.rollout_correction.bypass_old_log_prob=true", "algorithm.rollout_correction.is_level=token"],
            "so algorithm.rollout_correction.is_level has nothing to correct",
        ),
        (["algorithm.rollout_correction.rs=[2,0.5]"], "rollout_correction.rs: got [2.0, 0.5], wanted 0 <= lower"),
        (["actor_rollout_ref.rollout.val_kwargs.n=4"], "val_kwargs.n: got 4, but greedy rollouts are all equal"),
        (["trainer.backend=local", "trainer.n_gpus_per_node=2"], "trainer.backend: got 'local' with 2 ranks"),
        (["trainer.backend=local", "ray_init.address=auto"], "ray_init.address: given, but trainer.backend is local"),
        (["ray_init.num_cpus=2", "ray_init.address=auto"], "ray_init.num_cpus: is only for a private cluster"),
        (
            ["trainer.device=cpu", "actor_rollout_ref.actor.fsdp_config.param_offload=true"],
            "actor.fsdp_config.param_offload: got true, but trainer.device is cpu",
        ),
        (["trainer.resume_mode=resume_path"], "trainer.resume_from_path: not given, but"),
        (["ray_init.address=local"], "ray_init.address: got 'local', wanted auto"),
        (["ray_init.address=10.0.0.1"], "ray_init.address: got '10.0.0.1', wanted auto"),
        (["ray_init.address=10.0.0.1:99999"], "ray_init.address: got '10.0.0.1:99999', wanted auto"),
        (["ray_init.address=''"], "ray_init.address: got '', wanted auto"),
        (["trainer.resume_from_path=/x"], "trainer.resume_from_path: given, but trainer.resume_mode is auto"),
        (["actor_rollout_ref.rollout.server.addresses=[localhost:1]"], "got 'localhost:1', wanted http://host:port"),
        (["actor_rollout_ref.rollout.server.addresses=[http://]"], "got 'http://', wanted http://host:port"),
        (["actor_rollout_ref.rollout.server.addresses=[http://a:99999]"], "got 'http://a:99999', wanted http://host:port"),
        (["actor_rollout_ref.rollout.server.addresses=[http://a:x]"], "got 'http://a:x', wanted http://host:port"),
        (
            ["actor_rollout_ref.rollout.server.addresses=[http://a:1,http://a:1]"],
            "got 'http://a:1' twice, which are one server: name each once",
        ),
        (
            ["actor_rollout_ref.rollout.server.addresses=[http://127.0.0.1:1,http://localhost:1/]"],
            "'http://localhost:1/', which are one server",
        ),
        (
            ["actor_rollout_ref.rollout.server.port=65530", "actor_rollout_ref.rollout.server.launch=8"],
            "need ports up to 65537, but the last one is 65535: wanted at most 65528",
        ),
        (["actor_rollout_ref.rollout.server.addresses=[]"], "got an empty list"),
        (
            ["actor_rollout_ref.rollout.server.addresses=[http://a:1]", "actor_rollout_ref.rollout.server.port=3"],
            "for servers that the run starts",
        ),
        (
            ["actor_rollout_ref.rollout.name=embedded", "actor_rollout_ref.rollout.server.args=[--x]"],
            "are only for SGLang, but actor_rollout_ref.rollout.name is embedded",
        ),
        (["actor_rollout_ref.rollout.name=sglang", "trainer.deterministic=true"], "only the embedded engine"),
        (["actor_rollout_ref.rollout.embedded.max_context_length=1000"], "got 1000, but prompts of 512"),
    ],
)  # fmt: skip
def test_impossible_combinations(given: list[str], problem: str) -> None:
    found = problems(*given)
    assert len(found) == 1
    assert problem in found[0]


def test_a_conversation_longer_than_the_model(tiny_model_dir: object) -> None:
    model = f"actor_rollout_ref.model.path={tiny_model_dir}"
    assert load_config(None, overrides(model)).data.max_response_length == 512
    found = problems(model, "data.max_response_length=1537")
    assert "need 2049, but the model" in found[0]


def test_the_critic_is_not_asked_about_where_there_is_none() -> None:
    load_config(None, overrides("critic.use_dynamic_bsz=false", "critic.ppo_mini_batch_size=99"))
    load_config(None, overrides("actor_rollout_ref.ref.log_prob_use_dynamic_bsz=false"))


def test_configurations_built_in_python_are_checked_too() -> None:
    config = RunConfig()
    config.actor_rollout_ref.model.path = "/m"
    with pytest.raises(ConfigError, match=r"data\.train_files: not given"):
        check_run_config(config)
