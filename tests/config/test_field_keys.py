"""Keys as users of other trainers write them: each has its effect, or is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipes import MINIMAL, overrides, write

from agentrl.config import load_config
from agentrl.config.value_tree import get_value
from agentrl.errors import ConfigError

AR = "actor_rollout_ref."
ROLLOUT, TURNS = f"{AR}rollout.", f"{AR}rollout.multi_turn."


@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        (f"{ROLLOUT}agent_loop=tool_agent", f"{ROLLOUT}agent.default_agent_loop", "tool_agent"),
        (f"{ROLLOUT}agent_loop=tool_agent_loop", f"{ROLLOUT}agent.default_agent_loop", "tool_agent_loop"),
        ("sampling_params.max_tokens=300", f"{TURNS}max_tokens_per_turn", 300),
        ("sampling_params.timeout=30", f"{TURNS}turn_timeout_s", 30),
        ("sampling_params.temperature=0.5", f"{ROLLOUT}temperature", 0.5),
        (f"{ROLLOUT}sampling_params.max_new_tokens=300", f"{TURNS}max_tokens_per_turn", 300),
        (f"{ROLLOUT}sampling_params.top_p=0.5", f"{ROLLOUT}top_p", 0.5),
        ("tool_config.max_tool_calls=5", f"{TURNS}max_tool_calls", 5),
        ("tool_config.timeout=30", f"{TURNS}tool_timeout_s", 30),
        ("trainer.run_name=exp1", "trainer.experiment_name", "exp1"),
        ("trainer.log_generation_samples=true", "trainer.log_train_generations", 4),
        ("trainer.log_generation_samples=7", "trainer.log_train_generations", 7),
        ("trainer.log_generation_samples=false", "trainer.log_train_generations", 0),
        ("global_profiler.steps=[1,2]", "trainer.profile_steps", [1, 2]),
        ("global_profiler.tool=null", "trainer.profile_tool", "auto"),
        (f"{ROLLOUT}dtype=half", f"{ROLLOUT}dtype", "float16"),
        (f"{ROLLOUT}load_format=dummy_dtensor", f"{ROLLOUT}load_format", "dummy"),
        (f"{AR}actor.fsdp_config.model_dtype=bf16", f"{AR}actor.fsdp_config.model_dtype", "bfloat16"),
        ("data.train_data_num=null", "data.train_max_samples", -1),
        ("data.max_obs_length=500", f"{TURNS}max_tool_response_length", 500),
        ("algorithm.kl_penalty=0.01", "algorithm.kl_ctrl.kl_coef", 0.01),
        ("algorithm.kl_penalty=k2", "algorithm.kl_penalty", "k2"),
        ("reward.reward_manager.name=prime", "reward_manager.name", "prime"),
        ("reward_model.reward_loop_source=register", "reward_manager.source", "register"),
        ("reward_model.reward_loop_class_name=Mine", "reward_manager.module.name", "Mine"),
        ("+reward.custom_reward_function.reward_kwargs.a=1", "custom_reward_function.reward_kwargs", {"a": 1}),
    ],
)
def test_a_key_in_another_spelling_is_the_key(override: str, key: str, expected: object) -> None:
    assert get_value(load_config(None, overrides(override)).model_dump(), key) == expected


def test_the_size_of_a_group(caplog: pytest.LogCaptureFixture) -> None:
    given = [each for each in overrides("algorithm.group_size=4") if "rollout.n=" not in each]
    assert load_config(None, given).actor_rollout_ref.rollout.n == 4
    assert "algorithm.group_size is called 'actor_rollout_ref.rollout.n' here" in caplog.text
    # The last spelling counts, as the last of two overrides does.
    assert load_config(None, overrides("algorithm.group_size=2")).actor_rollout_ref.rollout.n == 2


def test_two_spellings_of_a_key_in_one_file(tmp_path: Path) -> None:
    same = write(tmp_path, "same.yaml", "{algorithm.group_size: 4, actor_rollout_ref.rollout.n: 4}")
    assert (
        load_config(same, [each for each in overrides() if "rollout.n=" not in each]).actor_rollout_ref.rollout.n == 4
    )
    other = write(tmp_path, "other.yaml", "{algorithm.group_size: 4, actor_rollout_ref.rollout.n: 8}")
    with pytest.raises(ConfigError, match=r"got 8, but algorithm.group_size, another name of it, is 4: give one of"):
        load_config(other, overrides())


def test_the_tools_of_a_run(tmp_path: Path) -> None:
    tools = write(tmp_path, "tools.yaml", "tools: [{class_name: calculator}]")
    assert load_config(None, overrides(f"tool_config_path={tools}")).has_tools


def test_rollouts_are_always_asynchronous(caplog: pytest.LogCaptureFixture) -> None:
    load_config(None, overrides(f"{ROLLOUT}mode=sync"))
    assert f"{ROLLOUT}mode has no effect here: agent loops are always asynchronous" in caplog.text
    with pytest.raises(ConfigError, match="got 'other', but agent loops are always asynchronous"):
        load_config(None, overrides(f"{ROLLOUT}mode=other"))


def test_fused_kernels_save_what_chunks_save(caplog: pytest.LogCaptureFixture) -> None:
    """verl's own examples with pictures ask for them."""
    load_config(
        None, overrides(f"{AR}model.use_fused_kernels=True", f"{AR}model.fused_kernel_options.impl_backend=torch")
    )
    assert (
        f"{AR}model.use_fused_kernels has no effect here: log-probs and entropy are computed in chunks" in caplog.text
    )


def test_a_weight_where_a_name_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, overrides("algorithm.kl_penalty=0.5", "algorithm.kl_ctrl.kl_coef=0.1"))
    assert (config.algorithm.kl_penalty, config.algorithm.kl_ctrl.kl_coef) == ("kl", 0.1)
    assert "algorithm.kl_penalty has no effect here: algorithm.kl_ctrl.kl_coef is given" in caplog.text


@pytest.mark.parametrize(
    ("given", "key", "expected"),
    [
        ({"trainer.logger": '["console"]'}, "trainer.logger", ["console"]),
        ({"trainer.logger": "['console', 'jsonl']"}, "trainer.logger", ["console", "jsonl"]),
        ({"trainer.logger": "console"}, "trainer.logger", ["console"]),
        ({"data.train_files": '["/a.parquet", "/b.parquet"]'}, "data.train_files", ["/a.parquet", "/b.parquet"]),
        ({"data.train_files": "/[ab].parquet"}, "data.train_files", "/[ab].parquet"),
        ({f"{ROLLOUT}stop_token_ids": "[1, 2]"}, f"{ROLLOUT}stop_token_ids", [1, 2]),
        ({f"{ROLLOUT}stop": "[END]"}, f"{ROLLOUT}stop", ["[END]"]),
        ({f"{ROLLOUT}stop": "[1]"}, f"{ROLLOUT}stop", ["[1]"]),
    ],
)
def test_a_list_that_was_written_as_text(given: dict[str, Any], key: str, expected: object) -> None:
    base = dict(each.split("=", 1) for each in overrides() if not each.startswith("data.train_files"))
    base["data.train_files"] = "/data/train.parquet"
    for name in (f"{ROLLOUT}n", f"{AR}actor.ppo_mini_batch_size", "data.train_batch_size"):
        base[name] = int(base[name])
    assert get_value(load_config({**base, **given}).model_dump(), key) == expected


LORA = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj"]}


@pytest.mark.parametrize(
    ("given", "rank", "alpha", "modules"),
    [
        ({f"{AR}actor.lora": {"enable": True, **LORA}}, 16, 32, ["q_proj"]),
        ({f"{AR}actor.lora.enable": True}, 16, 16, "all-linear"),
        ({f"{AR}actor.lora": LORA}, 16, 32, ["q_proj"]),
        ({f"{AR}model": {"lora_rank": 32, "lora_alpha": 32}}, 32, 32, "all-linear"),
        ({f"{AR}model.lora": {"rank": 32, "alpha": 32, "type": "lora"}}, 32, 32, "all-linear"),
        ({f"{AR}model": {"lora_rank": 8, "target_modules": "[k_proj,v_proj]"}}, 8, 16, ["k_proj", "v_proj"]),
        ({f"{AR}model": {"lora_rank": 8, "target_modules": "all_linear"}}, 8, 16, "all-linear"),
        ({f"{AR}model": {"lora_rank": 8, "target_modules": ["all-linear"]}}, 8, 16, "all-linear"),
        ({f"{AR}model": {"lora_rank": 8, "target_modules": "[all-linear]"}}, 8, 16, "all-linear"),
        ({"lora": {"r": 8, "dropout": 0, "bias": "none", "task_type": "CAUSAL_LM"}}, 8, 16, "all-linear"),
    ],
)
def test_lora_under_every_name(given: dict[str, Any], rank: int, alpha: float, modules: object) -> None:
    model = load_config(given, overrides()).actor_rollout_ref.model
    assert (model.adapts, model.lora_rank, model.lora_alpha, model.target_modules) == (True, rank, alpha, modules)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {f"{AR}model": {"lora_rank": 8, "lora_dropout": 0.05}},
            "model.lora_dropout: got 0.05, wanted 0: with dropout",
        ),
        ({f"{AR}model.lora": {"rank": 8, "type": "vlm_lora"}}, "lora.type: got 'vlm_lora', but plain LoRA is the one"),
        ({f"{AR}actor.lora": {"r": 8, "use_dora": True}}, "lora.use_dora: got true, but LoRA here is plain"),
        ({"lora": {"r": 8, "init_lora_weights": "pissa"}}, "lora.init_lora_weights: got 'pissa', but A begins at peft"),
        ({f"{AR}model": {"lora_rank": 0, "lora_enable": True}}, "model.lora_enable: got true, but .*lora_rank is 0"),
        ({f"{AR}model.lora_rank": 8, f"{AR}actor.fsdp_config.tensor_parallel_size": 2}, "layers with adapters are not"),
        ({f"{AR}model": {"lora_rank": -1}}, "model.lora_rank: got -1, wanted a whole number at least 0"),
    ],
)
def test_lora_that_cannot_be(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(given, overrides())


@pytest.mark.parametrize("odd", [{"rank_pattern": {"q_proj": 4}}, {"alpha_pattern": {"q": 4}}, {"use_rslora": True}])
def test_an_adapter_that_engines_scale_otherwise_is_not_sent_to_them(odd: dict[str, Any], tmp_path: Path) -> None:
    adapter = {f"{AR}model.lora_adapter_path": str(tmp_path), f"{AR}rollout.weight_sync": "adapter"}
    plain = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "rank_pattern": {}, "use_rslora": False}
    write(tmp_path, "adapter_config.json", json.dumps(plain))
    load_config(adapter, overrides())
    write(tmp_path, "adapter_config.json", json.dumps({**plain, **odd}))
    with pytest.raises(
        ConfigError, match=rf"weight_sync: got adapter, but the adapter .* has {next(iter(odd))} .*: use"
    ):
        load_config(adapter, overrides())
    load_config({**adapter, f"{AR}rollout.weight_sync": "disk"}, overrides())


def test_lora_of_the_critic_is_checked_where_there_is_one() -> None:
    keys = ("critic.model.lora.rank=8", "critic.model.lora_dropout=0.5")
    load_config(None, overrides(*keys))
    with pytest.raises(ConfigError, match=r"critic\.model\.lora_dropout: got 0\.5, wanted 0"):
        load_config(None, overrides(*keys, "algorithm.adv_estimator=gae"))


@pytest.mark.parametrize(
    "given", [{f"{AR}actor.lora": {"enable": False, **LORA}}, {f"{AR}actor.lora": {**LORA, "r": 0}}]
)
def test_lora_that_is_off_is_a_note(given: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert not load_config(given, overrides()).actor_rollout_ref.model.adapts
    assert "lora_alpha" in caplog.text


def test_what_lora_recipes_say_besides(caplog: pytest.LogCaptureFixture) -> None:
    given = {f"{AR}model": {"lora_rank": 8, "use_shm": True}, f"{AR}rollout.layered_summon": True}
    load_config({**given, f"{AR}model.lora.merge": True}, overrides())
    for key in ("model.use_shm", "rollout.layered_summon", "model.lora.merge"):
        assert f"{AR}{key} has no effect here" in caplog.text


@pytest.mark.parametrize("rank", [0, 8])
def test_the_whole_section_of_peft_or_verl(rank: int) -> None:
    """With what it says by default, whether LoRA is on or not."""
    peft = {"use_dora": False, "use_rslora": False, "fan_in_fan_out": False, "init_lora_weights": True, "bias": "none"}
    verl = {"lora_A_init_method": "xavier", "lora_B_init_method": "zero", "a2a_experimental": False, "dtype": None}
    verl |= {"type": "lora", "merge": False, "dropout_position": "pre", "freeze_vision_model": True}
    section = {"rank": rank, "alpha": 32, "dropout": 0.0, "exclude_modules": [], "adapter_path": None}
    assert load_config(
        {f"{AR}model.lora": {**section, **peft, **verl}}, overrides()
    ).actor_rollout_ref.model.adapts == bool(rank)


def test_the_two_spellings_of_a_rank_are_one_key() -> None:
    load = load_config({f"{AR}actor.lora.r": 16}, overrides(f"{AR}model.lora_rank=0"))
    assert load.actor_rollout_ref.model.lora_rank == 0
    load = load_config({f"{AR}model.lora_rank": 0}, overrides(f"{AR}actor.lora.r=16"))
    assert load.actor_rollout_ref.model.lora_rank == 16


@pytest.mark.parametrize("spelling", ["model_path", "model.path"])
def test_a_reward_model_under_its_names(spelling: str) -> None:
    config = load_config({"reward_model": {"enable": True, spelling: "Qwen/RM", "batch_size": 64}}, overrides())
    section = config.reward_model
    assert (section.enable, section.model.path) == (True, "Qwen/RM")
    assert (section.micro_batch_size_per_gpu, section.use_dynamic_bsz) == (64, False)


VERL_S_REWARD_MODEL = """
strategy: fsdp2
model:
  _target_: verl.workers.config.FSDPRewardModelCfg
  input_tokenizer: ${actor_rollout_ref.model.path}
  path: RM
  external_lib: null
  trust_remote_code: false
  use_shm: false
  use_remove_padding: false
  use_fused_kernels: false
  fsdp_config: {wrap_policy: {min_num_params: 0}, param_offload: false, reshard_after_forward: true, fsdp_size: -1}
micro_batch_size: null
micro_batch_size_per_gpu: null
max_length: null
use_dynamic_bsz: ${critic.use_dynamic_bsz}
forward_max_token_len_per_gpu: ${critic.ppo_max_token_len_per_gpu}
ulysses_sequence_parallel_size: 1
launch_reward_fn_async: false
profiler: {enable: false, all_ranks: false}
"""


@pytest.mark.parametrize("enable", [True, False])
def test_the_whole_section_of_verl(enable: bool) -> None:
    given = {"reward_model": {"enable": enable, **yaml.safe_load(VERL_S_REWARD_MODEL)}}
    section = load_config(given, overrides()).reward_model
    assert (section.enable, section.model.path, section.max_length, section.use_dynamic_bsz) == (
        enable,
        "RM",
        None,
        True,
    )
    assert section.model.input_tokenizer == MINIMAL["actor_rollout_ref.model.path"]
    assert not section.model.use_remove_padding
    assert section.forward_max_token_len_per_gpu == 16384


def test_a_search_run(caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(None, overrides("do_search=true", "retriever.url=http://127.0.0.1:8000/retrieve"))
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "search_r1_agent"
    own = f"{ROLLOUT}agent.default_agent_loop=tool_agent"
    config = load_config(None, overrides("do_search=true", own, "retriever.url=http://h", "max_turns=3"))
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "tool_agent"
    assert "do_search has no effect here: rollout.agent.default_agent_loop is tool_agent" in caplog.text
    assert "max_turns has no effect here" in caplog.text


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("do_search=true", "do_search: got true, but the run has no tool to search with: set retriever.url"),
        ("retriever.url=127.0.0.1:8000", "retriever.url: got '127.0.0.1:8000', wanted http://host:port"),
        (f"{AR}actor.state_masking=false", "got false, but what the environment says is never trained on"),
        ("algorithm.state_masking.start_state_marker=''", "start_state_marker: got '', wanted text"),
        ("reward_manager.source=importlib", "reward_manager.module.path: not given, wanted a Python file or module"),
        ("reward_manager.source=own", "reward_manager.source: got 'own', wanted one of 'register', 'importlib'"),
    ],
)
def test_what_cannot_work_is_told(override: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides(override))
    assert problem in caught.value.problems[0]


def test_the_reward_manager(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path, "mine.py", "def Mine(score, timeout_s): ...")
    section = {"name": "prime", "module": {"path": str(file), "name": "Mine"}}
    config = load_config({"reward_manager": {"source": "register", **section}}, overrides())
    assert config.reward_manager_name == "prime"
    assert "reward_manager.module.path" in caplog.text
    assert "reward_manager.source is register, so the manager is found by its name" in caplog.text
    config = load_config({"reward_manager": {"source": "importlib", **section}}, overrides())
    assert config.reward_manager_name == f"{file}:Mine"
    module = {"source": "importlib", "module": {"path": "own.managers", "name": "Mine"}}
    assert load_config({"reward.reward_manager": module}, overrides()).reward_manager_name == "own.managers.Mine"
    module = {"source": "importlib", "name": "Mine", "module": {"path": str(file)}}
    assert load_config({"reward.reward_manager": module}, overrides()).reward_manager_name == f"{file}:Mine"


def test_a_file_that_is_not_used_need_not_exist() -> None:
    module = {"path": "/path/to/mine.py", "name": "Mine"}
    assert load_config({"reward_manager": {"module": module}}, overrides()).reward_manager_name == "naive"
    with pytest.raises(ConfigError, match=r"reward_manager\.module\.path: /path/to/mine\.py does not exist"):
        load_config({"reward_manager": {"source": "importlib", "module": module}}, overrides())
