"""Recipes, overrides, includes, references and paths become one checked configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from recipes import overrides, write

from agentrl.config import RunConfig, dump_config, load_config
from agentrl.config.value_tree import get_value
from agentrl.errors import ConfigError


def load(*more: str) -> RunConfig:
    return load_config(None, overrides(*more))


def value(config: RunConfig, key: str) -> Any:
    return get_value(config.model_dump(), key)


@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        ("actor_rollout_ref.actor.optim.lr=1e-6", "actor_rollout_ref.actor.optim.lr", 1e-6),
        ("actor_rollout_ref.actor.optim.lr=1", "actor_rollout_ref.actor.optim.lr", 1.0),
        ("trainer.total_epochs=15", "trainer.total_epochs", 15),
        ("trainer.total_epochs=1_000", "trainer.total_epochs", 1000),
        ("data.shuffle=False", "data.shuffle", False),
        ("data.shuffle=true", "data.shuffle", True),
        ("data.val_batch_size=null", "data.val_batch_size", None),
        ("trainer.logger=[console,jsonl]", "trainer.logger", ["console", "jsonl"]),
        ("trainer.logger=['console','jsonl']", "trainer.logger", ["console", "jsonl"]),
        ('trainer.logger=["console"]', "trainer.logger", ["console"]),
        ("actor_rollout_ref.actor.optim.betas=[0.9,0.95]", "actor_rollout_ref.actor.optim.betas", (0.9, 0.95)),
        ("trainer.experiment_name='a b'", "trainer.experiment_name", "a b"),
        ('trainer.experiment_name="3"', "trainer.experiment_name", "3"),
        ("trainer.experiment_name=3", "trainer.experiment_name", "3"),
        ("trainer.experiment_name=1e-6", "trainer.experiment_name", "1e-6"),
        ("trainer.experiment_name=a=b", "trainer.experiment_name", "a=b"),
        ("trainer.experiment_name=a: b #c", "trainer.experiment_name", "a: b #c"),
        ("trainer.experiment_name=", "trainer.experiment_name", ""),
        ("trainer.experiment_name = spaced ", "trainer.experiment_name", "spaced"),
        ("+trainer.experiment_name=plus", "trainer.experiment_name", "plus"),
        ("++trainer.experiment_name=plus", "trainer.experiment_name", "plus"),
        ("data.train_files=[/a.parquet,/b.parquet]", "data.train_files", ["/a.parquet", "/b.parquet"]),
        ("data.train_files=/a/*.parquet", "data.train_files", "/a/*.parquet"),
        ("custom_reward_function.reward_kwargs.scale=0.5", "custom_reward_function.reward_kwargs", {"scale": 0.5}),
        ("custom_reward_function.reward_kwargs={a: 1}", "custom_reward_function.reward_kwargs", {"a": 1}),
        ("custom_reward_function.reward_kwargs={a:1,b:x}", "custom_reward_function.reward_kwargs", {"a": 1, "b": "x"}),
        ("actor_rollout_ref.rollout.stop=['</a>','a, b']", "actor_rollout_ref.rollout.stop", ["</a>", "a, b"]),
        ("data.apply_chat_template_kwargs.thinking=False", "data.apply_chat_template_kwargs", {"thinking": False}),
    ],
)  # fmt: skip
def test_overrides_follow_yaml(override: str, key: str, expected: Any) -> None:
    assert value(load(override), key) == expected


def test_the_last_override_counts() -> None:
    assert load("data.seed=3", "data.seed=4").data.seed == 4


@pytest.mark.parametrize(
    "override", ["data.seed", "=3", "data..seed=3", "~", "~data.sed", "~data..seed", "trainer.logger=[a", "a.b='x"]
)
def test_overrides_that_are_none(override: str) -> None:
    with pytest.raises(ConfigError, match=r"override '"):
        load(override)


def test_a_file_with_sections_and_overrides(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "run.yaml",
        "data: {train_files: /x.parquet, train_batch_size: 8}\n"
        "actor_rollout_ref:\n  model: {path: /m}\n  rollout: {n: 4}\n"
        "  actor: {ppo_mini_batch_size: 8, optim: {lr: 3e-4}}\n"
        "critic:\n",
    )
    config = load_config(file, ["data.seed=5"])
    assert (config.data.train_batch_size, config.data.seed) == (8, 5)
    assert config.actor_rollout_ref.actor.optim.lr == 3e-4
    assert config.critic == RunConfig().critic


def test_includes_are_laid_under_the_file(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", "data: {seed: 1, train_batch_size: 99}\ntrainer: {project_name: base}\n")
    write(tmp_path, "sub/more.yaml", "defaults: ../base\ndata: {seed: 2}\n")
    file = write(tmp_path, "run.yaml", "defaults: [sub/more]\ntrainer: {experiment_name: mine}\n")
    config = load_config(file, [*overrides("data.train_batch_size=99"), "data.max_prompt_length=7"])
    assert (config.data.seed, config.data.train_batch_size, config.data.max_prompt_length) == (2, 99, 7)
    assert (config.trainer.project_name, config.trainer.experiment_name) == ("base", "mine")


def test_self_says_where_the_file_itself_stands(tmp_path: Path) -> None:
    write(tmp_path, "last.yaml", "data: {seed: 9}\n")
    file = write(tmp_path, "run.yaml", "defaults: [_self_, last]\ndata: {seed: 1}\n")
    assert load_config(file, overrides()).data.seed == 9


def test_verls_base_recipe_is_agentrls_defaults(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "run.yaml",
        "hydra:\n  searchpath:\n    - file://verl/trainer/config\n"
        "defaults:\n  - ppo_trainer\n  - _self_\ndata: {seed: 4}\n",
    )
    assert load_config(file, overrides()).data.seed == 4


def test_an_include_in_a_circle(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "defaults: [b]\n")
    write(tmp_path, "b.yaml", "defaults: [a]\n")
    with pytest.raises(ConfigError, match=r"`defaults` includes itself: .*a\.yaml -> .*b\.yaml -> .*a\.yaml"):
        load_config(tmp_path / "a.yaml")


def test_a_missing_recipe_and_include(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        load_config("nowhere")
    with pytest.raises(ConfigError, match="nope does not exist"):
        load_config(write(tmp_path, "run.yaml", "defaults: [nope]"))


def test_recipes_are_found_in_agentrls_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "configs", "shipped.yaml", "data: {seed: 77}\n")
    monkeypatch.setattr("agentrl.files.CONFIGS", tmp_path / "configs")
    assert load_config("shipped", overrides()).data.seed == 77
    with pytest.raises(ConfigError, match="Did you mean 'shipped'"):
        load_config("shiped")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: {seed: 1}\ndata: {seed: 2}", "line 2, column 1: key 'data' is given twice"),
        ("data: [", "line 1"),
        ("- a\n- b", "holds a list, wanted a mapping"),
        ("1: 2", "key 1 is not text"),
        ("defaults: {a: b}", "wanted a list of recipe names"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write(tmp_path, "run.yaml", text))
    assert "run.yaml" in str(caught.value)


def test_yaml_is_version_1_2(tmp_path: Path) -> None:
    file = write(tmp_path, "run.yaml", "trainer: {project_name: on, experiment_name: 12:30}\ndata: {seed: 010}\n")
    config = load_config(file, overrides())
    assert (config.trainer.project_name, config.trainer.experiment_name, config.data.seed) == ("on", "12:30", 10)


def test_references_to_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_SEED", "11")
    monkeypatch.setenv("RUN_NAME", "7")
    config = load(
        "data.seed=${oc.env:RUN_SEED}",
        "trainer.seed=${data.seed}",
        "trainer.experiment_name=${RUN_NAME}",
        "trainer.project_name=p-${trainer.experiment_name}-${data.shuffle}",
        "data.max_prompt_length=${oc.env:NOT_SET_ANYWHERE,33}",
        "critic.optim=${actor_rollout_ref.actor.optim}",
    )
    assert (config.data.seed, config.trainer.seed, config.data.max_prompt_length) == (11, 11, 33)
    assert (config.trainer.experiment_name, config.trainer.project_name) == ("7", "p-7-true")
    assert config.trainer.default_local_dir == "outputs/p-7-true/7"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.seed=${data.sed}", r"'\$\{data.sed\}' does not name a key. Did you mean 'data.seed'"),
        ("trainer.seed=${oc.env:NOT_SET_ANYWHERE}", "the environment variable NOT_SET_ANYWHERE is not set"),
        (
            "trainer.project_name=${trainer.project_name}",
            "refers to itself: trainer.project_name -> trainer.project_name",
        ),
        ("trainer.project_name=x${trainer.logger}", "cannot be part of a text"),
    ],
)
def test_references_that_lead_nowhere(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(override)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "recipes/tools.yaml", "tools: []")
    write(tmp_path, "recipes/rows/a.parquet", "")
    write(tmp_path, "interactions.yaml", "")
    write(tmp_path, "shipped/loops.yaml", "[]")
    monkeypatch.setattr("agentrl.files.CONFIGS", tmp_path / "shipped")
    file = write(
        tmp_path,
        "recipes/run.yaml",
        "data: {train_files: [$DATA/x.parquet, rows/*.parquet]}\n"
        "actor_rollout_ref:\n  model: {path: ~/models/m}\n"
        "  rollout:\n    multi_turn: {tool_config_path: tools.yaml, interaction_config_path: interactions.yaml}\n"
        "    agent: {agent_loop_config_path: loops.yaml}\n"
        "trainer: {default_local_dir: ~/runs}\n",
    )
    config = load_config(
        file, [line for line in overrides() if not line.startswith(("data.train_f", "actor_rollout_ref.model"))]
    )
    rollout = config.actor_rollout_ref.rollout
    assert config.data.train_files == ["/data/x.parquet", str(tmp_path / "recipes/rows/*.parquet")]
    assert config.actor_rollout_ref.model.path == "/home/someone/models/m"
    assert rollout.multi_turn.tool_config_path == str(tmp_path / "recipes/tools.yaml")
    assert rollout.multi_turn.interaction_config_path == "interactions.yaml"
    assert rollout.agent.agent_loop_config_path == str(tmp_path / "shipped/loops.yaml")
    assert config.trainer.default_local_dir == "/home/someone/runs"


def test_a_chat_template_given_as_text_is_no_path() -> None:
    text = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert load(f"actor_rollout_ref.model.chat_template='{text}'").actor_rollout_ref.model.chat_template == text


def test_the_dump_reads_back_as_the_same_run(tmp_path: Path) -> None:
    config = load("algorithm.rollout_correction.rs=[0.5,2]", "custom_reward_function.reward_kwargs={a: null}")
    dumped = dump_config(config)
    assert load_config(write(tmp_path, "config.yaml", dumped)) == config
    assert yaml.safe_load(dumped)["data"]["train_batch_size"] == 16


def test_a_mapping_is_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.files.CONFIGS", tmp_path)
    write(tmp_path, "base.yaml", "data: {seed: 3, val_batch_size: null}\ntrainer: {seed: 9}\n")
    given = {
        "defaults": ["base"],
        "data": {"train_files": (Path("rows.parquet"),), "seed": 5},
        "actor_rollout_ref.rollout": {"n": 2},
        "actor_rollout_ref.model.path": "model",
    }
    config = load_config(given, ["data.shuffle=false"])
    assert (config.data.train_files, config.data.seed, config.data.shuffle) == (["rows.parquet"], 5, False)
    assert (config.trainer.seed, config.actor_rollout_ref.rollout.n) == (9, 2)
    assert given["defaults"] == ["base"], "the caller's mapping stays as it was"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": {"sed": 1}}, r"data\.sed: unknown key \(given 1\)\. Did you mean 'data\.seed'"),
        ({"data": {1: 2}}, r"data: got the key 1, wanted text"),
        ({"data": {"seed": object}}, r"data\.seed: got <class 'object'>, wanted text, a number"),
        ({"defaults": 3}, r"the mapping: defaults: got 3, wanted a list of recipe names"),
    ],
)
def test_a_mapping_that_is_no_recipe(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(given)


@pytest.mark.parametrize("overrides", ["trainer.seed=1", {"trainer.seed": 1}])
def test_overrides_are_a_list(overrides: Any) -> None:
    with pytest.raises(ConfigError, match=r"overrides: got .*, wanted a list such as"):
        load_config("grpo", overrides)


def test_bounds_of_a_covariance_that_leave_no_token() -> None:
    with pytest.raises(ConfigError, match=r"policy_loss_options.clip_cov_lb: got 9, wanted less than clip_cov_ub"):
        load_config({"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "clip_cov", "clip_cov_lb": 9}}}})


@pytest.mark.parametrize(
    ("written", "name"),
    [("fp32", "float32"), ("bf16", "bfloat16"), ("torch.bfloat16", "bfloat16"), ("BF16", "bfloat16")],
)
def test_data_types_have_other_names(written: str, name: str) -> None:
    sections = ("actor_rollout_ref.actor.fsdp_config.model_dtype", "critic.fsdp_config.compute_dtype")
    config = load_config(
        None, overrides(*(f"{key}={written}" for key in (*sections, "actor_rollout_ref.rollout.dtype")))
    )
    policy = config.actor_rollout_ref
    given = (policy.actor.fsdp_config.model_dtype, config.critic.fsdp_config.compute_dtype, policy.rollout.dtype)
    assert given == (name, name, name)


@pytest.mark.parametrize("written", ["fp8", "fp16", "half", "double", "16"])
def test_a_data_type_that_training_lacks(written: str) -> None:
    with pytest.raises(ConfigError, match=f"model_dtype: got '?{written}'?, wanted one of 'float32', 'bfloat16'"):
        load_config(None, overrides(f"actor_rollout_ref.actor.fsdp_config.model_dtype={written}"))
